"""All limits of the server, checked for consistency when this module is imported.

Sizes are bytes and times are nanoseconds, unless the name has another unit. For configurable limits
this module has the default; `corvo.config` has the effective value.
"""

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
MS_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000

# Jobs. The size of a text is the number of bytes received.
PAYLOAD_SIZE_MAX: Final = 256 * KIB
RESULT_SIZE_MAX: Final = MIB
CHECKPOINT_SIZE_MAX: Final = MIB
PROGRESS_SIZE_MAX: Final = 16 * KIB
ERROR_SIZE_MAX: Final = 64 * KIB
BACKTRACE_SIZE_MAX: Final = 256 * KIB
TAGS_COUNT_MAX: Final = 32
TAGS_SIZE_MAX: Final = 4 * KIB
QUEUE_NAME_SIZE_MAX: Final = 128
ACTIVE_COUNTED_MAX: Final = 20_000  # active jobs that the list of workers counts
READY_READ_MAX: Final = 16  # jobs read to find the one that has been ready the longest
QUEUES_MAX: Final = 100_000  # a batch that starts below the limit is accepted whole
UNIQUE_KEY_SIZE_MAX: Final = KIB
GROUP_KEY_SIZE_MAX: Final = KIB
JOB_ID_SIZE_MAX: Final = 128
WORKER_ID_SIZE_MAX: Final = 256
WORKERS_MAX: Final = 100_000
HOSTNAME_SIZE_MAX: Final = 256
RESULT_SCHEMA_SIZE_MAX: Final = 64 * KIB
RESULT_SCHEMA_PARTS_MAX: Final = 1_000  # schemas in it, with references expanded
RESULT_SCHEMA_COST_MAX: Final = 20_000  # checks of one value
RESULT_CHECKS_MAX: Final = 2_000_000  # per result; about 0.1 s
RETRIES_DEFAULT: Final = 3
RETRIES_MAX: Final = 1_000_000

# Log lines of jobs. A block is one row; above a limit the oldest blocks are dropped first.
LOG_LINES_MAX: Final = 1_000  # per call
LOG_CALL_SIZE_MAX: Final = 256 * KIB
LOG_BLOCK_SIZE: Final = 16 * KIB
LOG_ATTEMPT_SIZE_MAX: Final = MIB
LOG_SIZE_MAX: Final = 16 * MIB  # of all attempts of a job
LOG_BLOCKS_MAX: Final = 1_024

# Pages of responses: items, and bytes after which a page ends (a page has at least one item).
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
EVENTS_PAGE_MAX: Final = 200  # of one job: each event may need another block
PAGE_SIZE_MAX: Final = MIB
EVENTS_LOOKED_AT_MAX: Final = 10_000  # scanned for one page of the events of a queue
EXPLAINED_JOBS_MAX: Final = 10  # holders and workers listed in an explanation

# Requests.
ENQUEUE_BATCH_MAX: Final = 10_000
FETCH_BATCH_MAX: Final = 512
ACK_BATCH_MAX: Final = 512
HEARTBEAT_JOBS_MAX: Final = 10_000
FETCH_QUEUES_MAX: Final = 256
FETCH_REPLY_SIZE_MAX: Final = 8 * MIB
FETCH_WAIT_DEFAULT_S: Final = 30
FETCH_WAIT_MAX_S: Final = 60
END_WAIT_DEFAULT_S: Final = 30
END_WAIT_MAX_S: Final = 60
LEASE_DEFAULT_S: Final = 60
LEASE_MIN_S: Final = 1
LEASE_MAX_S: Final = 86_400

# Rate limits and groups of queues. A rate limit stores 16 bytes per job in its window.
RATE_MAX: Final = 1_000_000
RATE_WINDOW_MAX_NS: Final = 366 * 86_400 * SECOND_NS
CONCURRENCY_MAX: Final = 1_000_000_000

# Retry: delays saturate here, for any base delay and attempt.
RETRY_BASE_DELAY_DEFAULT_MS: Final = 5_000
RETRY_MAX_DELAY_DEFAULT_MS: Final = 600_000
RETRY_DELAY_UNCAPPED_MAX_MS: Final = 30 * 86_400 * 1000
RETRY_JITTER_DEFAULT_PPM: Final = 100_000
DELAY_MAX_MS: Final = 1 << 53

# Release: the first consecutive releases have no delay; later ones have 1 s, doubling to 60 s.
RELEASES_IMMEDIATE: Final = 3
RELEASE_DELAY_MIN_NS: Final = SECOND_NS
RELEASE_DELAY_MAX_NS: Final = 60 * SECOND_NS

# Time. The year 9999 in nanoseconds does not fit in 64 bits: heaps of due times saturate at
# DUE_MAX_NS (the year 2262); records keep the true value.
LEASE_GRACE_NS: Final = 15 * SECOND_NS
STAMP_STEP_MAX_NS: Final = 5 * SECOND_NS
TIME_MAX_NS: Final = 253_402_300_799_999_999_999
DUE_MAX_NS: Final = (1 << 63) - 1
PAUSE_NOTICED_NS: Final = SECOND_NS  # at least twice the time between two ticks of the clock

# Bulk operations run in steps of STEP_JOBS jobs, one log entry per step. The results of the newest
# operations are kept for a day.
STEP_JOBS: Final = 25
BULK_GET_MAX: Final = 1_000
BULK_GET_SIZE_MAX: Final = 4 * MIB
BULK_IDS_MAX: Final = 100_000
# Job ids that one entry adds to a bulk operation; a larger set takes several entries.
OPERATION_IDS_MAX: Final = 5_000
BULK_QUEUED_NS: Final = 60 * SECOND_NS  # an incomplete set is abandoned after this idle time
BULK_UNDO_NS: Final = 3_600 * SECOND_NS
BULK_OPERATIONS_MAX: Final = 1_000
BULK_KEPT_NS: Final = 86_400 * SECOND_NS
RESULTS_PAGE_MAX: Final = 1_000

# Retention.
RETENTION_DEFAULT_NS: Final = 7 * 86_400 * SECOND_NS
PURGE_JOBS_MAX: Final = 50  # per entry
HOLD_TEXT_SIZE_MAX: Final = 4 * KIB
FEEDBACK_SIZE_MAX: Final = 16 * KIB

# Schedules. A run that is later than OCCURRENCE_LATE_MAX_NS counts as missed.
SCHEDULES_MAX: Final = 10_000
CRON_SIZE_MAX: Final = 256
EVERY_MIN_NS: Final = SECOND_NS
EVERY_MAX_NS: Final = 366 * 86_400 * SECOND_NS
NEXT_RUNS: Final = 10
OCCURRENCE_LATE_MAX_NS: Final = 5 * SECOND_NS
SCHEDULE_RUNS_MAX: Final = 100  # per entry
CATCH_UP_LIMIT_DEFAULT: Final = 100
CATCH_UP_LIMIT_MAX: Final = 1_000

# Composition.
DEPENDENCIES_MAX: Final = 1_000
BATCH_DEPENDENCIES_MAX: Final = 10_000  # of all jobs of one request
CHAIN_STEPS_MAX: Final = 1_000
CHAIN_SIZE_MAX: Final = 256 * KIB
EXIT_REASON_SIZE_MAX: Final = KIB
RESOLVED_DEPENDENTS_MAX: Final = 1_000  # dependents of a finished job resolved per entry
PURGED_BATCHES_MAX: Final = 250  # per entry
MEMBERS_SHOWN_MAX: Final = 100

# Idempotency keys: default retention and default maximum of stored responses.
IDEMPOTENCY_KEY_SIZE_MAX: Final = KIB
IDEMPOTENCY_KEPT_NS: Final = 86_400 * SECOND_NS
IDEMPOTENCY_ENTRIES: Final = 1_000_000
IDEMPOTENCY_ENTRIES_MAX: Final = 100_000_000

# Log and entries.
ENTRY_SIZE_MAX: Final = 20 * MIB
ENTRY_SEAL_SIZE: Final = 4 * MIB
ENTRY_OPS_MAX: Final = 4_096
GATHER_NS: Final = MS_NS  # see corvo.engine.pipeline
DUE_IDS_MAX: Final = 1_000  # jobs of an op of an older version, which does not name them
DUE_STEP: Final = 100  # jobs that an op for due work names; the next op follows at once
DUE_LOOKED_AT_MAX: Final = 500  # entries of a heap of due times read for one op
WAL_SEGMENT_SIZE: Final = 64 * MIB
WAL_RECORD_OVERHEAD_MAX: Final = 256
PENDING_OPS_MAX: Final = 16_384
PENDING_SIZE_MAX: Final = 256 * MIB
OUTCOME_WAIT_NS: Final = 10 * SECOND_NS
LEADER_WAIT_NS: Final = 5 * SECOND_NS  # for a leader; an election takes less
LEADER_SILENT_NS: Final = 300 * MS_NS  # six heartbeats
RETRY_AFTER_MIN_MS: Final = 5
RETRY_AFTER_MAX_MS: Final = 1_000

# Raft. The in-flight window is per follower; RAFT_UNCOMMITTED_* is how much a leader without a
# quorum still accepts.
RAFT_APPEND_SIZE_MAX: Final = MIB
RAFT_INFLIGHT_MAX: Final = 256
RAFT_INFLIGHT_SIZE_MAX: Final = 64 * MIB
RAFT_UNCOMMITTED_MAX: Final = 4_096
RAFT_UNCOMMITTED_SIZE_MAX: Final = 128 * MIB
RAFT_APPLYING_SIZE_MAX: Final = 32 * MIB
RAFT_PROMOTE_LAG_MAX: Final = 1_000
RAFT_LOG_KEPT_SIZE: Final = 64 * MIB  # for followers; older entries need a snapshot

# Peers. A frame holds one append; PEER_UNSENT_SIZE_MAX limits the unsent bytes of a slow peer.
PEER_FRAME_SIZE_MAX: Final = ENTRY_SIZE_MAX + 4 * MIB
PEER_GREETING_SIZE_MAX: Final = 4 * KIB
PEER_GREETINGS_MAX: Final = 64
PEER_UNSENT_SIZE_MAX: Final = 96 * MIB

# Snapshots are sent in chunks, with a rate limit (bytes per second) that leaves disk and network
# capacity for other work. An unused copy is deleted.
SNAPSHOT_CHUNK_SIZE: Final = 256 * KIB
SNAPSHOT_RATE_MAX: Final = 64 * MIB
SNAPSHOT_UNWANTED_NS: Final = 30 * SECOND_NS

# Requests that a follower forwards to the leader: connections (fetches get up to three quarters),
# requests queued for a connection, and timeouts: in the queue, to connect, for a response, for a
# response to a fetch, for an old leader to respond after a leader change, and for an idle
# connection (less than the leader allows).
PROXY_CONNECTIONS_MAX: Final = 512
PROXY_LINE_MAX: Final = 4_096
PROXY_LINE_NS: Final = 5 * SECOND_NS
PROXY_CONNECT_NS: Final = 2 * SECOND_NS
PROXY_ANSWER_NS: Final = 15 * SECOND_NS
PROXY_FETCH_NS: Final = 75 * SECOND_NS
PROXY_OLD_LEADER_NS: Final = SECOND_NS
PROXY_IDLE_NS: Final = 30 * SECOND_NS

# Write buffer and flush. Payload and tags up to this size are stored in the row of the job head,
# and so is worker output.
PART_INSIDE_SIZE_MAX: Final = KIB
# The same limit for both together: two such rows share a page of the state store, unless the worker
# id is very long. A larger row takes overflow pages of its own.
HEAD_INSIDE_SIZE_MAX: Final = 3 * KIB // 2
FLUSH_RECORDS: Final = 1_000
FLUSH_RECORDS_MAX: Final = 5_000
FLUSH_ENTRIES: Final = 5  # large entries flushed together
FLUSH_RECORDS_LIGHT: Final = 250  # while entries are small: requests wait for the flush
FLUSH_RECORDS_THROTTLED: Final = 50  # while requests run between flushes
THROTTLED_OPS_MAX: Final = 16  # ops per entry; above that, few large flushes are cheaper
FLUSH_SIZE: Final = 2 * MIB
FLUSH_AGE_NS: Final = SECOND_NS
FLUSH_IDLE_NS: Final = 50 * MS_NS
WRITE_BUFFER_SIZE_MAX: Final = 128 * MIB
MAP_SIZE: Final = 1 << 40
DISK_FREE_REFUSE: Final = 128 * MIB
BALLAST_SIZE: Final = 32 * MIB
EVENT_LOG_SIZE_MAX: Final = 64 * MIB
EVENT_TRIM_BLOCKS_MAX: Final = 1_000

# Outbox: rows that the mirror has not read. Above the limit the oldest rows are dropped, and the
# mirror must be rebuilt.
OUTBOX_SIZE_MAX: Final = 64 * MIB
OUTBOX_DROPPED_MAX: Final = 100  # rows per flush

# The sidecar: calls in flight, frame size of its channel, how long it may be silent, and the
# restart delays after repeated crashes.
IPC_CALLS_MAX: Final = 256
IPC_FRAME_SIZE_MAX: Final = 64 * MIB
SIDECAR_SILENT_NS: Final = 15 * SECOND_NS
READY_SEARCH_WAIT_NS: Final = 5 * SECOND_NS  # after a start, /readyz waits that long for search
SIDECAR_BACKOFF_MIN_NS: Final = 100 * MS_NS
SIDECAR_BACKOFF_MAX_NS: Final = 10 * SECOND_NS

# The mirror: records and state-store flushes per transaction; rows and bytes that a scan reads
# under one snapshot; how long a search waits for the mirror to catch up, how long it runs, and how
# long a rebuild takes.
MIRROR_DOCUMENTS: Final = 2_000
MIRROR_FLUSHES: Final = 100
MIRROR_SCAN_ROWS: Final = 5_000
MIRROR_SCAN_SIZE: Final = 16 * MIB
MIRROR_WAIT_NS: Final = 2 * SECOND_NS
SEARCH_NS: Final = 10 * SECOND_NS
REBUILD_WAIT_NS: Final = 3600 * SECOND_NS

# Search: items of a page, matches counted exactly, size of filter texts, parts of a jq expression,
# and values per facet: counted continuously, and shown in a response.
SEARCH_PAGE_DEFAULT: Final = 50
SEARCH_PAGE_MAX: Final = 1_000
FULLTEXT_PAGE_MAX: Final = 500
SEARCH_COUNTED_MAX: Final = 10_000
SEARCH_TEXT_SIZE_MAX: Final = 4 * KIB
JQ_SIZE_MAX: Final = 4 * KIB
JQ_CONDITIONS_MAX: Final = 16
FACET_VALUES_MAX: Final = 1_000
FACET_KEYS_MAX: Final = 100
FACETS_MAX: Final = 16
FACET_VALUES_SHOWN: Final = 100

# Reports: how far back they go, rows per table, bucket width of latencies, and queues whose oldest
# waiting job is looked up per step.
REPORT_KEPT_NS: Final = 86_400 * SECOND_NS
REPORT_ROWS_MAX: Final = 500_000
REPORT_BUCKET_NS: Final = 300 * SECOND_NS
REPORT_QUEUES_MAX: Final = 100

# Workers: minimum time between writes of a worker's row; silence after which a worker is stale,
# offline, and deleted.
REMOVED_WORKERS_MAX: Final = 1_000  # per entry, and those seen at the same time as the last one
WORKER_TOUCH_NS: Final = 5 * SECOND_NS
WORKER_UNSEEN_NS: Final = 30 * SECOND_NS  # a waiting fetch counts as contact
WORKER_STALE_NS: Final = 60 * SECOND_NS
WORKER_OFFLINE_NS: Final = 300 * SECOND_NS
WORKER_FORGOTTEN_NS: Final = 86_400 * SECOND_NS

# Streams of events and job output. A subscriber with more unsent bytes than the limit gets nothing
# until it has caught up; a stream without a history is closed instead.
OPEN_STREAMS_MAX: Final = 4_096
STREAM_KEEPALIVE_NS: Final = 15 * SECOND_NS
STREAM_UNSENT_SIZE_MAX: Final = 256 * KIB
STREAM_PAGE_EVENTS: Final = 256
STREAM_PAGE_SIZE: Final = 64 * KIB
STREAM_FILTER_NAMES_MAX: Final = 100
STREAM_LASTS_NS: Final = 86_400 * SECOND_NS

# Worker service: message size, elements of all lists and maps in a message, enqueues in a frame of
# a lifecycle stream, and how many consecutive errors close a stream, with a pause after each.
RPC_MESSAGE_SIZE_MAX: Final = 4 * MIB
RPC_ITEMS_MAX: Final = 20_000
RPC_TIMEOUT_DIGITS_MAX: Final = 10
LIFECYCLE_ENQUEUES_MAX: Final = 1_000
LIFECYCLE_STRIKES_MAX: Final = 10
LIFECYCLE_STRIKE_NS: Final = 5 * MS_NS
LIFECYCLE_IDLE_NS: Final = 100 * MS_NS  # longest wait of a fetch that finds nothing
# Lifecycle streams: open streams, frames in progress over all streams, frames per second of one
# stream, how long a frame waits to be started, and maximum credit (jobs) of a worker.
LIFECYCLE_OPEN_MAX: Final = 4_096
LIFECYCLE_IN_FLIGHT_MAX: Final = 2_048
LIFECYCLE_FPS_MAX: Final = 500
LIFECYCLE_TURN_WAIT_NS: Final = 5 * SECOND_NS
LIFECYCLE_CREDIT_MAX: Final = 100_000
LIFECYCLE_CREDIT_WAIT_NS: Final = 30 * SECOND_NS

# Live job output: bytes per heartbeat and job, per job, over all jobs; how long it is kept after
# the job has ended.
STREAM_DELTA_SIZE_MAX: Final = 64 * KIB
STREAM_TEXT_SIZE_MAX: Final = 256 * KIB
STREAM_TEXTS_SIZE_MAX: Final = 64 * MIB
STREAM_TEXT_KEPT_NS: Final = 600 * SECOND_NS

# Metrics: queues with their own series; later queues share the series "other".
METRIC_QUEUES_MAX: Final = 1_000

# HTTP/1.1.
HEAD_SIZE_MAX: Final = 16 * KIB
HEAD_FIELDS_MAX: Final = 100
TARGET_SIZE_MAX: Final = 8 * KIB
BODY_SIZE_MAX: Final = 16 * MIB
TRAILER_FIELDS_MAX: Final = 32
TRAILER_SIZE_MAX: Final = 4 * KIB
CHUNKS_MAX: Final = 10_000
CHUNK_MEAN_MIN: Final = 16
CHUNK_MEAN_AFTER: Final = 1_000
FEED_SLICE: Final = 16 * KIB
PIPELINE_MAX: Final = 64
PIPELINE_RESUME: Final = 16
UNSENT_SIZE_MAX: Final = 4 * MIB
CONNECTIONS_MAX: Final = 10_000
FILES_RESERVED: Final = 64
CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
BODIES_IN_FLIGHT_SIZE_MAX: Final = 256 * MIB
HANDSHAKE_WAIT_NS: Final = 10 * SECOND_NS
HEAD_WAIT_NS: Final = 10 * SECOND_NS
BODY_IDLE_NS: Final = 30 * SECOND_NS
BODY_RATE_MIN: Final = 240
KEEP_ALIVE_IDLE_NS: Final = 75 * SECOND_NS
WRITE_STALL_NS: Final = 60 * SECOND_NS
LINGER_NS: Final = SECOND_NS
LINGER_DRAINING_NS: Final = 100 * MS_NS
DRAIN_NS: Final = 500 * MS_NS


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """HTTP/2 limits: concurrent state, and what a peer may do at once (burst) and per second
    (rate)."""

    streams_max: int = 1_000
    stream_window_size: int = MIB
    window_size: int = 4 * MIB
    frames_per_turn: int = 256
    continuations_max: int = 8
    block_size_max: int = 32 * KIB
    fields_size_fatal: int = 64 * KIB
    control_queue_max: int = 1_000
    late_max: int = 1_000
    resets_burst: int = 1_000
    resets_rate: int = 33
    own_resets_burst: int = 100
    own_resets_rate: int = 5
    own_resets_max: int = 1_024
    settings_burst: int = 100
    settings_rate: int = 5
    settings_entries_max: int = 64
    pings_burst: int = 100
    pings_rate: int = 10
    ping_strikes: int = 3
    ping_spacing_ns: int = 5 * SECOND_NS
    priorities_burst: int = 100
    priorities_per_stream: int = 10
    updates_burst: int = 1_000
    updates_per_data: int = 10
    slips_burst: int = 10_000
    slips_rate: int = 330
    empty_data_max: int = 100
    tiny_data: int = 256
    tiny_data_budget: int = 100 * 256 * (4 * MIB // (64 * KIB))  # grows with the window
    small_data: int = KIB
    small_data_wait_ns: int = SECOND_NS
    settings_wait_ns: int = 10 * SECOND_NS
    ping_idle_ns: int = 30 * SECOND_NS
    ping_wait_ns: int = 10 * SECOND_NS
    leave_wait_ns: int = SECOND_NS


HTTP2: Final = Http2Limits()

assert PAYLOAD_SIZE_MAX < BODY_SIZE_MAX < ENTRY_SIZE_MAX
assert RESULT_SIZE_MAX + CHECKPOINT_SIZE_MAX < BODY_SIZE_MAX
assert ENTRY_SEAL_SIZE + BODY_SIZE_MAX <= ENTRY_SIZE_MAX
assert ENTRY_SIZE_MAX + WAL_RECORD_OVERHEAD_MAX < WAL_SEGMENT_SIZE
assert RAFT_APPEND_SIZE_MAX <= RAFT_INFLIGHT_SIZE_MAX
assert RAFT_INFLIGHT_SIZE_MAX <= RAFT_LOG_KEPT_SIZE
assert RAFT_INFLIGHT_SIZE_MAX + PEER_FRAME_SIZE_MAX <= PEER_UNSENT_SIZE_MAX
assert min(RAFT_UNCOMMITTED_SIZE_MAX, RAFT_APPLYING_SIZE_MAX) >= ENTRY_SIZE_MAX
assert LEASE_MIN_S <= LEASE_DEFAULT_S <= LEASE_MAX_S
assert FETCH_WAIT_DEFAULT_S <= FETCH_WAIT_MAX_S
assert END_WAIT_DEFAULT_S <= END_WAIT_MAX_S
assert LOG_BLOCK_SIZE < LOG_CALL_SIZE_MAX < LOG_ATTEMPT_SIZE_MAX <= LOG_SIZE_MAX
assert LOG_SIZE_MAX <= LOG_BLOCKS_MAX * LOG_BLOCK_SIZE
assert RETRY_DELAY_UNCAPPED_MAX_MS < DELAY_MAX_MS
assert RPC_MESSAGE_SIZE_MAX < BODY_SIZE_MAX and HEARTBEAT_JOBS_MAX <= RPC_ITEMS_MAX
assert STREAM_DELTA_SIZE_MAX <= STREAM_TEXT_SIZE_MAX < STREAM_TEXTS_SIZE_MAX
assert STREAM_PAGE_SIZE < STREAM_UNSENT_SIZE_MAX < UNSENT_SIZE_MAX
assert PIPELINE_RESUME < PIPELINE_MAX
assert HEAD_SIZE_MAX <= HTTP2.block_size_max <= HTTP2.fields_size_fatal
assert HTTP2.stream_window_size <= HTTP2.window_size
assert PROXY_CONNECTIONS_MAX < CONNECTIONS_PER_ADDRESS_MAX
assert PROXY_IDLE_NS < KEEP_ALIVE_IDLE_NS
assert OUTCOME_WAIT_NS < PROXY_ANSWER_NS
assert FETCH_WAIT_MAX_S * SECOND_NS + OUTCOME_WAIT_NS < PROXY_FETCH_NS
assert LINGER_DRAINING_NS < DRAIN_NS
assert CATCH_UP_LIMIT_DEFAULT <= CATCH_UP_LIMIT_MAX
assert FLUSH_SIZE < WRITE_BUFFER_SIZE_MAX
assert WORKER_TOUCH_NS < WORKER_STALE_NS < WORKER_OFFLINE_NS < WORKER_FORGOTTEN_NS
assert BALLAST_SIZE < DISK_FREE_REFUSE
# A queue name as prefix of an index row, and a job id in any key, fit LMDB's 511 bytes.
assert QUEUE_NAME_SIZE_MAX + JOB_ID_SIZE_MAX + 32 < 511
