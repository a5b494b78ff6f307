"""Byte codecs.

layouts      encodings of op payloads and rows by layout strings
fields       primitive readers and writers
keys         keys of the state store
names        checks of texts that become parts of keys
protobuf     protobuf wire format
wal_record   records of the write-ahead log, with CRC
fast_json    common requests, from JSON bytes to op bytes in one pass
fast_proto   common requests, from protobuf bytes to op bytes in one pass
lease_token  lease tokens
"""
