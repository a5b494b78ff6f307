"""Job ids: monotonic ULIDs, and the validation of ids from clients.

A ULID has 48 bits of milliseconds and 80 random bits, in 26 characters of Crockford's base 32.
Within one millisecond the random part is incremented, so ids sort in creation order. This also
keeps writes of new jobs close together in the B-tree of the state store.
"""

from collections.abc import Callable
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Final

from corvo import limits
from corvo.errors import ValidationError
from corvo.platform.echoes import shown

PREFIX: Final = "job_"
SCHEDULE_PREFIX: Final = "sched_"
BATCH_PREFIX: Final = "batch_"
CHAIN_PREFIX: Final = "chn_"
BULK_PREFIX: Final = "bulk_"
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# All pairs of characters, each encoding ten bits.
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_ID_LETTERS: Final = f"{ascii_letters}{digits}_-".encode()
_RANDOM_BITS: Final = 80
# The last 20 bits change with every id; the bits before them are cached as text.
_LOW_BITS: Final = 20
_LOW_END: Final = 1 << _LOW_BITS
_MS_NS: Final = limits.MS_NS


class JobIds:
    """Generator of job ids. Only the leader generates ids, so two generators never conflict."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._millisecond = -1
        self._high = 0  # random bits above the low ones
        self._low = 0
        self._text = ""  # cached text of the millisecond and the high bits

    def new(self, stamp_ns: int) -> str:
        """Return an id that sorts after every earlier one, even if the stamp does not advance."""
        millisecond = stamp_ns // _MS_NS
        if millisecond > self._millisecond:
            self._begin(millisecond)
        else:
            self._low += 1
            if self._low == _LOW_END:
                self._carry()
        return f"{self._text}{_PAIRS[self._low >> 10]}{_PAIRS[self._low & 1023]}"

    def _begin(self, millisecond: int) -> None:
        random = int.from_bytes(self._random_bytes(_RANDOM_BITS // 8), "big")
        self._millisecond = millisecond
        self._high, self._low = divmod(random, _LOW_END)
        self._text = PREFIX + _base32(millisecond, 10) + _base32(self._high, 12)

    def _carry(self) -> None:
        if self._high + 1 == 1 << (_RANDOM_BITS - _LOW_BITS):
            self._begin(self._millisecond + 1)
            return
        self._high += 1
        self._low = 0
        self._text = PREFIX + _base32(self._millisecond, 10) + _base32(self._high, 12)


def derived_id(at_ns: int, *origin: str) -> str:
    """The id of a job that the state machine creates: equal on every node, and sorted by time."""
    digest = blake2b("\0".join(origin).encode(), digest_size=_RANDOM_BITS // 8).digest()
    first, second = divmod(int.from_bytes(digest, "big"), 1 << 40)
    return PREFIX + _base32(at_ns // limits.MS_NS, 10) + _base32(first, 8) + _base32(second, 8)


def check_job_id(job_id: str, field: str = "job_id") -> str:
    """Validate a job id from a client; ids of other generators are accepted, too."""
    if len(job_id) > limits.JOB_ID_SIZE_MAX:
        raise ValidationError(
            f"{field} has {len(job_id)} characters (limit {limits.JOB_ID_SIZE_MAX})", field=field
        )
    letters = job_id.replace("_", "").replace("-", "")
    if not job_id or not job_id.isascii() or (letters and not letters.isalnum()):
        raise ValidationError(
            f"{field} must consist of letters, digits, '_' and '-', not {shown(job_id)}",
            field=field,
        )
    return job_id


def check_job_ids(ids: list[str], field: str, start: int = 0) -> list[str]:
    """Validate and deduplicate job ids. `start` is the index of the first one in the request.

    One check of all ids together is many times faster than a check of each."""
    unique = list(dict.fromkeys(ids))
    others = "".join(unique).encode(errors="surrogatepass").translate(None, _ID_LETTERS)
    if others or "" in unique or max(map(len, unique), default=0) > limits.JOB_ID_SIZE_MAX:
        for index, job_id in enumerate(ids, start):
            try:
                check_job_id(job_id, f"{field}[{index}]")
            except ValidationError as error:
                error.fields |= {"field": field, "index": index}
                raise
    return unique


def _base32(value: int, length: int) -> str:
    pairs: list[str] = []
    for _ in range(length // 2):
        pairs.append(_PAIRS[value & 1023])
        value >>= 10
    pairs.reverse()
    return "".join(pairs)
