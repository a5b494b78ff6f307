"""Encodings of stored records: bytes in the state store, objects in the program.

jobs    job head, body, data, options; error records; workers, schedules, unique locks, batches,
        idempotency records
bulk    bulk operations, their job ids and outcomes
queues  queue configuration and counters, groups, grants of rate limits
logs    log lines of jobs
events  one packed block of events for each log entry
meta    the meta row: applied index, clock, counters, hash
outbox  rows with the names of the records that a flush changed
grown   records of earlier formats, which lack newer fields
"""
