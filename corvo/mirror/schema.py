"""The SQL schema of the mirror.

Times are unix nanoseconds, limited to 64 bits. Payloads and other JSON values are the received
texts. `number` is the row number of a job for the lifetime of the file; facets and full text refer
to it. Unset columns are NULL. Search reads the view `job_texts`: `payload_text` and `tags_text` are
payload and tags with their escapes decoded, and are set only if there are any.

Table `about` has one row: the epoch of the outbox, the index of the last flush that was read
(`watermark`), the next key of the initial scan (NULL when it is complete), and the last job in the
full-text index. Long texts are the last columns of a row, so that other columns are read without
them.
"""

import functools
from typing import Final

VERSION: Final = 4
_SHAPES: Final = 256

# Columns that every row of jobs has, and columns that a new row has if they are not empty or 0.
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
    "payload_text",
    "tags_text",
)
# Columns that can change after a job is enqueued.
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
    result               TEXT,
    payload_text         TEXT,
    tags_text            TEXT
);
CREATE VIEW job_texts AS SELECT number, IFNULL(payload_text, payload) AS payload,
    IFNULL(tags_text, tags) AS tags, queue FROM jobs;
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
    payload, tags, queue, content=job_texts, content_rowid=number
);
"""

# Created after the scan: inserts are three times as fast without them. The partial indexes in
# TABLES cost nothing during the scan, but would cost a pass over all rows afterwards.
INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS jobs_created ON jobs(created_at, id)",
    "CREATE INDEX IF NOT EXISTS jobs_state ON jobs(state, created_at, id)",
    "CREATE INDEX IF NOT EXISTS jobs_queue ON jobs(queue, state, created_at, id)",
)

# Columns that an update sets to NULL when the value is empty or 0. SQL does this, because binding
# None is slow (the sqlite3 module looks for an adapter each time, 0.4 µs per value).
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
    """The columns of a new row of this shape, see `rows.new_values`."""
    return [*REQUIRED, *(name for bit, name in enumerate(OPTIONAL) if shape >> bit & 1)]


@functools.lru_cache(maxsize=_SHAPES)
def insert_job(shape: int) -> str:
    """The INSERT statement for new rows of this shape.

    It has only the columns that are set, because binding an unset column costs 0.1 µs and most jobs
    set few columns."""
    columns = columns_of(shape)
    return f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
