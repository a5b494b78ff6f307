"""The REST API: request bodies, response bodies and handlers.

requests     bodies of requests other than commands, and the decoder of all bodies
halves       escapes of single surrogates in bodies
responses    JSON of jobs, queues, schedules and all other documents
relations    batches, chains and dependencies in responses
explain      why a job does not run
idempotency  the Idempotency-Key header
queue_pages  pages of queues in several orders
steps        reads that take several turns of the loop
prometheus   text format of /metrics
handlers/    one module per group of routes
"""
