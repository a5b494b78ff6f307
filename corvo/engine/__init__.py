"""The engine: turns calls into ops, ops into entries, and applied entries into results.

service         the contract that the front end uses: propose, read, wait
validate        checks of names, numbers and durations before an op is built
pipeline        batches ops into entries and resolves each op when its entry is applied
fetches         fetches that wait for a job, and which of them to dispatch
flusher         writes dirty state to LMDB and trims the log
scheduler       proposes promotions, lease expiries and schedule runs when they are due
schedule_runs   computes the due occurrences of a schedule
housekeeping    bulk operation steps, purges and lock sweeps in bounded steps
leadership      starts and stops leader-only services on role changes
"""
