"""The tables of the mirror.

Times are unix nanoseconds (the latest that 8 bytes hold stands for later ones), payloads and other
JSON values are the texts that came in. `number` is the row of a job as long as the file lives;
facets and full text are kept by it. What is not set is NULL.

`about` has one row: the epoch of the outbox it follows, how far it has read (`watermark`, the index
of a flush), the key that the first reading of the whole base goes on with (NULL when that is
done), and the last job that full text knows. Long texts come last in a row, so that the others are
read without them.
"""

import functools
from typing import Final

VERSION: Final = 3
_SHAPES: Final = 256

# Columns of a job that every row has, and those that a new row has when they are not empty or 0.
REQUIRED: Final = (
    "number",
    "id",
    "payload",
    "max_retries",
    "retry_backoff",
    "retry_base_delay_ms",
    "retry_max_delay_ms",
    "created_at",
    "queue",
    "queue_number",
    "seq",
    "state",
    "priority",
    "attempt",
    "error_count",
    "event_seq",
)
OPTIONAL: Final = (
    "unique_key",
    "tags",
    "progress",
    "checkpoint",
    "result",
    "parent_id",
    "schedule_id",
    "worker_id",
    "hostname",
    "lease_expires_at",
    "scheduled_at",
    "started_at",
    "completed_at",
    "failed_at",
    "unique_until",
    "provider_error",
    "batch_id",
    "chain_id",
    "chain_step",
    "group_key",
    "hold_reason",
    "expire_at",
)
# Columns that change after a job was enqueued.
CHANGING: Final = (
    "queue",
    "queue_number",
    "seq",
    "state",
    "priority",
    "attempt",
    "worker_id",
    "hostname",
    "progress",
    "checkpoint",
    "result",
    "provider_error",
    "hold_reason",
    "lease_expires_at",
    "scheduled_at",
    "expire_at",
    "started_at",
    "completed_at",
    "failed_at",
    "error_count",
    "event_seq",
)

TABLES: Final = """
CREATE TABLE about (
    version    INTEGER NOT NULL,
    epoch      BLOB NOT NULL,
    watermark  INTEGER NOT NULL,
    scan       BLOB,
    fulltext   INTEGER NOT NULL
);
CREATE TABLE jobs (
    number               INTEGER PRIMARY KEY,
    id                   TEXT NOT NULL UNIQUE,
    queue                TEXT NOT NULL,
    queue_number         INTEGER NOT NULL,
    seq                  INTEGER NOT NULL,
    state                TEXT NOT NULL,
    priority             INTEGER NOT NULL,
    attempt              INTEGER NOT NULL,
    max_retries          INTEGER NOT NULL,
    retry_backoff        TEXT NOT NULL,
    retry_base_delay_ms  INTEGER NOT NULL,
    retry_max_delay_ms   INTEGER NOT NULL,
    unique_key           TEXT,
    unique_until         TEXT,
    batch_id             TEXT,
    worker_id            TEXT,
    hostname             TEXT,
    parent_id            TEXT,
    chain_id             TEXT,
    chain_step           INTEGER NOT NULL DEFAULT 0,
    group_key            TEXT,
    schedule_id          TEXT,
    provider_error       INTEGER NOT NULL DEFAULT 0,
    hold_reason          TEXT,
    lease_expires_at     INTEGER,
    scheduled_at         INTEGER,
    expire_at            INTEGER,
    created_at           INTEGER NOT NULL,
    started_at           INTEGER,
    completed_at         INTEGER,
    failed_at            INTEGER,
    error_count          INTEGER NOT NULL,
    event_seq            INTEGER NOT NULL,
    tags                 TEXT,
    payload              TEXT NOT NULL,
    progress             TEXT,
    checkpoint           TEXT,
    result               TEXT
);
CREATE INDEX jobs_unique_key ON jobs(unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_batch_id ON jobs(batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX jobs_worker_id ON jobs(worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX jobs_parent_id ON jobs(parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_chain_id ON jobs(chain_id) WHERE chain_id IS NOT NULL;
CREATE TABLE job_tags (
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    number  INTEGER NOT NULL,
    PRIMARY KEY (key, value, number)
) WITHOUT ROWID;
CREATE TABLE job_errors (
    number      INTEGER NOT NULL,
    slot        INTEGER NOT NULL,
    job_id      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    error       TEXT NOT NULL,
    backtrace   TEXT,
    created_at  INTEGER NOT NULL
);
CREATE UNIQUE INDEX job_errors_job ON job_errors(number, slot);
CREATE TABLE unique_locks (
    key         BLOB PRIMARY KEY,
    queue       TEXT NOT NULL,
    unique_key  TEXT NOT NULL,
    job_id      TEXT NOT NULL,
    expires_at  INTEGER
) WITHOUT ROWID;
CREATE TABLE batches (
    id           TEXT PRIMARY KEY,
    total        INTEGER NOT NULL,
    pending      INTEGER NOT NULL,
    succeeded    INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    finished_at  INTEGER
) WITHOUT ROWID;
CREATE TABLE queues (
    row_name         TEXT PRIMARY KEY,
    number           INTEGER NOT NULL,
    name             TEXT NOT NULL,
    paused           INTEGER NOT NULL,
    max_concurrency  INTEGER,
    rate_limit       INTEGER,
    rate_window_ms   INTEGER,
    cleared_seq      INTEGER NOT NULL,
    destroyed        INTEGER NOT NULL,
    created_at       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE workers (
    id              TEXT PRIMARY KEY,
    hostname        TEXT,
    queues          TEXT NOT NULL,
    last_heartbeat  INTEGER NOT NULL,
    started_at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE schedules (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    cron        TEXT NOT NULL,
    timezone    TEXT NOT NULL,
    enabled     INTEGER NOT NULL,
    last_run    INTEGER,
    next_run    INTEGER,
    created_at  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE VIRTUAL TABLE jobs_fts USING fts5(
    payload, tags, queue, content=jobs, content_rowid=number
);
"""

# Made when a file has seen the whole base: rows go in three times as fast without them. Those that
# few jobs are in cost nothing meanwhile, but a look at all rows afterwards.
INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS jobs_created ON jobs(created_at, id)",
    "CREATE INDEX IF NOT EXISTS jobs_state ON jobs(state, created_at, id)",
    "CREATE INDEX IF NOT EXISTS jobs_queue ON jobs(queue, state, created_at, id)",
)

# Columns that an update makes NULL when the value is empty or 0. Binding None is slow (the module
# looks for an adapter each time, 0.4 µs a value), so SQL does it.
_EMPTY: Final = (
    "worker_id",
    "hostname",
    "progress",
    "checkpoint",
    "result",
    "hold_reason",
)
_ZERO: Final = (
    "lease_expires_at",
    "scheduled_at",
    "expire_at",
    "started_at",
    "completed_at",
    "failed_at",
)


def _mark(column: str) -> str:
    if column in _EMPTY:
        return "NULLIF(?, '')"
    return "NULLIF(?, 0)" if column in _ZERO else "?"


UPDATE_JOB: Final = (
    f"UPDATE jobs SET {', '.join(f'{name} = {_mark(name)}' for name in CHANGING)} WHERE number = ?"
)


def columns_of(shape: int) -> list[str]:
    """The columns of a new row of this shape (`rows.new_values`)."""
    return [*REQUIRED, *(name for bit, name in enumerate(OPTIONAL) if shape >> bit & 1)]


@functools.lru_cache(maxsize=_SHAPES)
def insert_job(shape: int) -> str:
    """The statement for new rows of this shape. Most columns of most jobs are not set, and each one
    that is bound for nothing is a tenth of a microsecond."""
    columns = columns_of(shape)
    return f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
