"""The replicated log: proposes entries and delivers committed entries in order.

log         the interface `Log`, and `Entry`
single_log  the log of a single node
raft_log    the log of a cluster node, replicated by Raft
wal_log     base class of both: opens the write-ahead log and reports its state
driver      runs the Raft core: orders messages, writes, applies and reads
raft/       the Raft core, without I/O
wal/        the write-ahead log: segments, flushes, recovery
cluster/    peer connections, snapshots, membership, discovery, divergence check
"""
