"""Records of the log lines of jobs (see `corvo.storage.records.jobs`).

- *Log*: number of the next line, number of dropped lines, then its blocks by columns.
- *Log block*: encoded lines, as in the AppendLogs op (`ops.LINE_LAYOUT`).
"""

from typing import Final

from corvo import records
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import StorageError
from corvo.model import Log, LogBlock
from corvo.records import layout
from corvo.storage.records.jobs import decode_document

LOG_LAYOUT: Final = layout(records.LOG)
BLOCK_LAYOUT: Final = layout(records.LOG_BLOCK)


def encode_log(log: Log) -> bytes:
    """Encode the list of log blocks of a job."""
    blocks = log.blocks
    return encode_fields(
        LOG_LAYOUT,
        (
            log.next_seq,
            log.dropped,
            [block.first_seq for block in blocks],
            [block.attempt for block in blocks],
            [block.count for block in blocks],
            [block.size for block in blocks],
            [block.dropped for block in blocks],
        ),
    )


def decode_log(job_id: str, data: bytes) -> Log:
    """Decode the log of a job, without its lines."""
    log = Log()
    log.next_seq, log.dropped, *columns = decode_document(LOG_LAYOUT, data, "log of job", job_id)
    if len({len(column) for column in columns}) != 1:
        raise StorageError(
            f"damaged log of job {job_id!r} in the state store: columns do not match"
        )
    for first_seq, attempt, count, size, dropped in zip(*columns, strict=True):
        block = LogBlock(first_seq, attempt)
        block.count, block.size, block.dropped = count, size, dropped
        log.blocks.append(block)
    return log


def encode_log_block(lines: list[bytes]) -> bytes:
    """Encode a block of log lines, each of which has layout `ops.LINE_LAYOUT`."""
    return encode_fields(BLOCK_LAYOUT, (lines,))


def decode_log_block(job_id: str, data: bytes) -> list[bytes]:
    """Decode a log block of a job into encoded lines."""
    lines: list[bytes]
    (lines,) = decode_document(BLOCK_LAYOUT, data, "log block of job", job_id)
    return lines
