"""Log lines of jobs: the overlay of their rows, above the base.

The lines of a job are numbered. They are kept in blocks, each of one attempt and at most
LOG_BLOCK_SIZE long unless a single line is longer; the row of the log says which blocks there are,
and how many lines went where a block was dropped. How lines are cut into blocks depends on their
sizes alone, not on what was flushed when.
"""

from corvo import ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields
from corvo.limits import LOG_ATTEMPT_SIZE_MAX, LOG_BLOCK_SIZE, LOG_BLOCKS_MAX, LOG_SIZE_MAX
from corvo.model import Log, LogBlock, LogLine
from corvo.storage.records import logs as log_records
from corvo.storage.rows import Row, Rows


class LogRows:
    """Logs and blocks that changed since the last flush."""

    def __init__(self, state_store: Rows) -> None:
        self._state_store = state_store
        self._logs: dict[str, Log] = {}
        self._blocks: dict[bytes, list[bytes]] = {}
        self._deletes: list[bytes] = []
        self.size: int = 0  # of what has to be flushed

    def documents(self) -> int:
        """How much there is to flush."""
        return len(self._logs) + len(self._blocks) + len(self._deletes)

    def find(self, job_id: str) -> Log:
        """The log of a job, which is empty if it has none."""
        log = self._logs.get(job_id)
        if log is None:
            row = self._state_store.get(keys.log(job_id))
            log = Log() if row is None else log_records.decode_log(job_id, row)
        return log

    def append(self, job_id: str, attempt: int, lines: list[bytes]) -> Log:
        """Add encoded lines, and drop what is over the bounds."""
        log = self.find(job_id)
        self._logs[job_id] = log
        for line in lines:
            block = log.blocks[-1] if log.blocks else None
            if block is None or block.attempt != attempt or block.size + len(line) > LOG_BLOCK_SIZE:
                block = LogBlock(log.next_seq, attempt)
                log.blocks.append(block)
                self._blocks[keys.log_block(job_id, block.first_seq)] = []
            self._lines_to_change(job_id, block).append(line)
            log.next_seq += 1
            block.count += 1
            block.size += len(line)
            self.size += len(line)
        self._drop(job_id, log, attempt)
        return log

    def _lines_to_change(self, job_id: str, block: LogBlock) -> list[bytes]:
        key = keys.log_block(job_id, block.first_seq)
        lines = self._blocks.get(key)
        if lines is None:
            lines = self._lines(job_id, block)
            self._blocks[key] = lines
            self.size += block.size
        return lines

    def _lines(self, job_id: str, block: LogBlock) -> list[bytes]:
        key = keys.log_block(job_id, block.first_seq)
        lines = self._blocks.get(key)
        if lines is not None:
            return lines
        row = self._state_store.get(key)
        assert row is not None, f"job {job_id} lacks its log block {block.first_seq}"
        return log_records.decode_log_block(job_id, row)

    def _drop(self, job_id: str, log: Log, attempt: int) -> None:
        """Bring the attempt, and then the whole log, within its bounds."""
        of_attempt = 0
        whole = 0
        for block in log.blocks:
            whole += block.size
            if block.attempt == attempt:
                of_attempt += block.size
        at = 0
        while of_attempt > LOG_ATTEMPT_SIZE_MAX:
            block = log.blocks[at]
            if block.attempt != attempt:
                at += 1
                continue
            of_attempt -= block.size
            whole -= block.size
            self._drop_block(job_id, log, at)
        while whole > LOG_SIZE_MAX or len(log.blocks) > LOG_BLOCKS_MAX:
            whole -= log.blocks[0].size
            self._drop_block(job_id, log, 0)

    def _drop_block(self, job_id: str, log: Log, at: int) -> None:
        block = log.blocks.pop(at)
        self._forget(keys.log_block(job_id, block.first_seq))
        gone = block.count + block.dropped
        for other in log.blocks[at:]:
            if other.attempt == block.attempt:
                other.dropped += gone
                return
        log.dropped += gone

    def _forget(self, key: bytes) -> None:
        self._blocks.pop(key, None)
        self._deletes.append(key)

    def delete(self, job_id: str) -> None:
        """The log goes, with all its rows."""
        for block in self.find(job_id).blocks:
            self._forget(keys.log_block(job_id, block.first_seq))
        self._logs.pop(job_id, None)
        self._deletes.append(keys.log(job_id))

    def read(
        self, job_id: str, attempt: int, after: int, limit: int, size_max: int
    ) -> tuple[list[LogLine], bool]:
        """Lines behind the seq `after`, of one attempt or (0) of all, cut by count and by bytes
        but never to nothing; and whether there are more."""
        found: list[LogLine] = []
        size = 0
        for block in self.find(job_id).blocks:
            if attempt not in (0, block.attempt) or block.first_seq + block.count - 1 <= after:
                continue
            lines = self._lines(job_id, block)
            for i in range(max(0, after + 1 - block.first_seq), block.count):
                line = lines[i]
                size += len(line)
                if len(found) == limit or (size > size_max and found):
                    return found, True
                level, at_ns, message = decode_fields(ops.LINE_LAYOUT, line)
                found.append(LogLine(block.first_seq + i, block.attempt, level, at_ns, message))
        return found, False

    # Flush.

    def collect(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Everything that a flush has to write."""
        deletes += self._deletes
        for job_id, log in self._logs.items():
            puts.append((keys.log(job_id), log_records.encode_log(log)))
        for key, lines in self._blocks.items():
            puts.append((key, log_records.encode_log_block(lines)))

    def written(self) -> None:
        """The base has everything."""
        self._logs.clear()
        self._blocks.clear()
        self._deletes.clear()
        self.size = 0
