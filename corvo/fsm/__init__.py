"""The state machine: a deterministic function from log entries to state, results and events.

machine         applies entries, answers reads, names due work, flushes
failed_entries  the error for an entry that cannot be applied, and its omission
states          states and transitions of a job, as one table
ops/            the effect of each op on the state
state/          the state in memory: write buffer, indexes, event log
queries/        reads that change nothing
"""
