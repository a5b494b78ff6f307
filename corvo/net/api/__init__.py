"""The REST API: request bodies, response bodies and handlers.

requests         bodies of requests and their checks
responses        JSON of jobs, queues, schedules and all other documents
enqueue_options  optional fields of an enqueue, encoded for the op
action_args      arguments of the actions on jobs
relations        batches, chains and dependencies in requests and responses
explain          why a job does not run
result_schemas   JSON Schema checks of results
schema_costs     a bound on the work of such a check
idempotency      the Idempotency-Key header
prometheus       text format of /metrics
handlers/        one module per group of routes
"""
