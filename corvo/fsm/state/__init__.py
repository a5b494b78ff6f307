"""What there is: native objects over the rows of the state store, and the indexes on them.

state         the state that ops read and change
store         write buffer over the state store: loads rows, keeps dirty records until a flush
row_overlay   changed rows that no object represents
queue_index   ready jobs, leases and counters of one queue
groups        ready jobs by group, and the turn of each group
rate_limits   starts within a queue's rate window
deadlines     heaps of due times
index_rows    keys of the index row that each job has
event_log     the event log: packed blocks, by entry
log_lines     blocks of log lines of a job
outbox        names of changed documents for the mirror
json_members  members that are added to a JSON object
"""
