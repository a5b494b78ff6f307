"""Commands: requests of all protocols, checked and turned into ops.

inputs          the documents that commands take
enqueue         enqueues, alone and in batches, and their fast paths
work            fetches, acks, fails, heartbeats and releases
options         optional fields of an enqueue, encoded for the op
action_args     arguments of the actions on jobs
result_schemas  JSON Schema checks of results
schema_costs    a bound on the work of such a check
"""
