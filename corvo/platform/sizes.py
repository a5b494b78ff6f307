"""Conversion of sizes (`1MB`, `256KiB`) to bytes."""

import re
from fractions import Fraction
from typing import Final

_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?([a-z]*)", re.ASCII)
_UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmg", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parse_size(text: str, low: int, high: int) -> int:
    """Bytes of a number, or of a size with a unit; `kB` is 1000 bytes, `KiB` is 1024.

    A ValueError describes the expected form."""
    match = _SIZE.fullmatch(text.strip().lower())
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError("a number of bytes, or a size such as 256KiB or 1MB")
    size = Fraction(match[1]) * unit
    if not low <= size <= high or size.denominator != 1:
        raise ValueError(f"a whole number of bytes from {low} to {high}")
    return int(size)
