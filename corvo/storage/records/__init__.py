"""Encodings of stored records: bytes in the state store, values in the program.

jobs    job head, body, data, options; error records
queues  queue configuration and counters, groups, rate limits
logs    lines that workers log for a job
events  one packed block of events for each log entry
meta    the meta row: applied index, clock, counters, hash
outbox  rows that name the documents a flush changed
"""
