"""Corvo: a background-job server with an HTTP API.

cli/        the command line
node/       composition roots: a server process and its parts
net/        the front end: HTTP, REST API, RPC, streams, forwarding
engine/     turns calls into ops, ops into entries, and applied entries into results
fsm/        the state machine
consensus/  the replicated log
storage/    the state store in LMDB, and the encodings of records
mirror/     the SQLite copy of the state store for search and reports
sidecar/    the second process of a server, which runs the mirror
platform/   operating system and small value formats
_fast/      byte work, compiled by Cython
ops         the table of all ops
records     the table of all stored records
model       objects of the state: jobs, queues, workers, schedules
events      events, and their encoding for readers
config      the table of all settings
limits      all limits of the server
errors      codes and HTTP status of all errors
"""

__version__ = "0.1.0"
API_VERSION = "v1"
