"""Byte codecs.

layouts      encodings of op payloads and rows by layout strings
names        check of texts that become parts of keys
fields       primitive readers and writers
keys         keys of the state store
protobuf     protobuf wire format
wal_record   records of the write-ahead log, with CRC
fast_json    common requests, from JSON bytes to op bytes in one pass
fast_proto   common requests, from protobuf bytes to op bytes in one pass
lease_token  lease tokens
"""
