"""The state machine: a pure function from entries to state.

machine   applies entries and answers reads
states    the life of a job as a table of transitions
ops/      what each op does
state/    what there is
queries/  what is read
"""
