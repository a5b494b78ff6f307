"""Changed inputs for the targets, without guidance."""

import random


def changed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """A seed with a few bytes changed, cut out, repeated, or taken from another seed."""
    text = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.randrange(1, 9))
        choice = draw.randrange(5)
        if choice == 0:
            text[at:end] = draw.randbytes(end - at)
        elif choice == 1:
            del text[at:end]
        elif choice == 2:
            text[at:at] = text[at:end] * draw.randrange(1, 20)
        elif choice == 3:
            text[at:at] = draw.choice([b"\0", b"\xff" * 9, b"\r\n", b'"', b"\x80", b"0"])
        else:
            text[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(text)
