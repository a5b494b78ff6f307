"""When a failed job runs again: integers only, saturating, jitter drawn by the entry.

All nodes must compute the same time, so the randomness comes from the seed in the entry and
from the position of the op in it.
"""

from typing import Final

from corvo.limits import DELAY_MAX_MS, MS_NS, RETRY_DELAY_UNCAPPED_MAX_MS

# Positions in model.BACKOFFS.
NONE: Final = 0
FIXED: Final = 1
LINEAR: Final = 2

MILLION: Final = 1_000_000
_U64: Final = (1 << 64) - 1
_EXPONENT_MAX: Final = 62


def draw(seed: int, op_position: int) -> int:
    """64 random bits: number `op_position` of the splitmix64 sequence that starts at `seed`."""
    z = (seed + (op_position + 1) * 0x9E3779B97F4A7C15) & _U64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64
    return z ^ (z >> 31)


def delay_ms(backoff: int, attempt: int, base_ms: int, max_ms: int) -> int:
    """Delay after failed attempt number `attempt`, capped; without a cap at 30 days."""
    assert attempt >= 1
    if backoff == NONE:
        return 0
    delay = base_ms
    if backoff == LINEAR:
        delay = base_ms * attempt
    elif backoff != FIXED:
        delay = base_ms << min(attempt - 1, _EXPONENT_MAX)
    return min(delay, DELAY_MAX_MS, max_ms if max_ms > 0 else RETRY_DELAY_UNCAPPED_MAX_MS)


def jittered_ns(delay: int, jitter_ppm: int, random: int) -> int:
    """The delay in nanoseconds, moved evenly within plus or minus the given share of itself."""
    delay_ns = delay * MS_NS
    reach = delay_ns * jitter_ppm // MILLION
    return delay_ns - reach + random % (2 * reach + 1)
