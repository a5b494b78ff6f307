"""One module per group of routes.

A handler is a plain function of a request: it proposes an op and returns, or replies at once; it
never waits.

enqueue    POST /enqueue and POST /enqueue/batch
worker     fetch, ack, fail, heartbeat, release
jobs       reads of one job, and actions on it
wait       waits for the result of a job, for GET /jobs/{id}/wait and an enqueue with `wait`
inspect    explain, events, errors and log lines of jobs; unique keys
bulk       bulk operations
batches    reads of batches
queues     reads of queues, pause, drain, concurrency, clear, delete
limits     rate limit, group limit and aging of a queue
schedules  cron schedules
search     queries of the mirror
reports    statistics of the last day
admin      workers, health, status, metrics, version, the test clock
cluster    changes of the members of a cluster
"""
