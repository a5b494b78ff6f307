from corvo._fast.codec.names cimport check_name
