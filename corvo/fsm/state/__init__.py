"""The state: native objects over the rows of the state store, and the indexes on them.

state         the state that ops read and change, and the entry being applied
write_buffer  records in memory above the state store: loads rows, keeps changes until a flush
row_overlay   changed rows that no object represents, and sets of ids
queue_index   ready jobs, leases and limits of one queue
queue_totals  job counts and counters over all queues
sorted_names  names of queues in order
groups        ready jobs by group, and the last turn of each group
rate_limits   jobs started within a queue's rate window
deadlines     heaps of due times
index_rows    key and value of the index row that each job has
event_log     the event log: one packed block for each entry
log_lines     blocks of log lines of jobs
outbox        names of changed records for the mirror
json_members  members added to a JSON object without parsing its values
"""
