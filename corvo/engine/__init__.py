"""The engine: turns calls into ops, ops into entries, and applied entries into results.

service         the contract that the front end uses: propose, read, wait
caller          identity of the caller of a request, and its idempotency key
reads           interface of reads of the applied state
validate        checks of names, numbers and durations before an op is built
pipeline        batches ops into entries and resolves each op when its entry is applied
fetches         parks fetches, dispatches those that a queue can serve, and answers them
results         requests that wait for the end of a job
parked          a waiting fetch, and deadlines of requests that wait
feed            publishes the events of each applied entry to all subscribers
flusher         writes dirty state to LMDB and trims the log
due_counters    counts the results of ops that are proposed when something is due
scheduler       proposes promotions, lease expiries and schedule runs when they are due
schedule_runs   computes the due occurrences of a schedule
housekeeping    bulk operation steps, purges and lock sweeps in bounded steps
leadership      starts and stops leader-only services on role changes
commands/       requests of all protocols, checked and turned into ops
"""
