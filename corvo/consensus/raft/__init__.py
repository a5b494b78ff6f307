"""The Raft core, without I/O: messages and ticks in, messages and writes out.

core         one node: elections, roles, following, outputs
leader       replication, commit and reads while a node leads
progress     replication state of one follower
log_view     the log: durable entries, and entries being written
apply_queue  committed entries that are not applied yet
read_index   rounds that confirm linearizable reads
membership   configurations in the log, and changes of them
quorum       majorities and votes
messages     messages, hard state and configurations, and their encoding
ready        work for the driver, and status
storage      the interface of the durable log, and its copy in memory
config       settings of a node
"""
