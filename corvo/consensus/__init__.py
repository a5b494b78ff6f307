"""The replicated log: propose an entry, learn its fate, read committed entries in order.

log         the contract
single_log  a log of one node
raft_log    a log that Raft replicates
wal_log     what both share: opening the data directory and the write-ahead log
driver      runs the Raft core: one turn of messages, ticks and writes
raft/       the Raft core, without I/O
wal/        the write-ahead log
cluster/    peers, snapshots, membership
"""
