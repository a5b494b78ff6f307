"""The Huffman code of HPACK (RFC 7541, appendix B), encoded and decoded by table.

The code is canonical: symbols get rising codes in the order of (length, symbol), so the lengths say
all. A decoder is a machine that eats four bits at a time. Its states are the 256 inner nodes of the
code tree, and since no code is shorter than five bits, a step emits at most one symbol. Time is
linear in the input, whatever it holds.
"""

import cython

# Bits of the code of each byte, and of the end-of-string symbol 256, which must never be sent.
_LENGTHS = (
    *(13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28),
    *(28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28),
    *(6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6),
    *(5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10),
    *(13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7),
    *(7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6),
    *(15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5),
    *(6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28),
    *(20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23),
    *(24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24),
    *(22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23),
    *(21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23),
    *(26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25),
    *(19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27),
    *(20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23),
    *(26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26),
    30,
)
_END = 256
_SILENT, _EMITS, _FAILS = 0, 1, 2


def _assign_codes() -> list[int]:
    codes = [0] * len(_LENGTHS)
    code = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda s: (_LENGTHS[s], s)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        codes[symbol] = code
        code += 1
    return codes


_CODES = _assign_codes()


def _build_tree() -> list[list[int]]:
    """Inner nodes as pairs; a number below zero is the symbol -1 - n."""
    nodes = [[0, 0]]
    for symbol, length in enumerate(_LENGTHS):
        at = 0
        for shift in range(length - 1, 0, -1):
            bit = _CODES[symbol] >> shift & 1
            if nodes[at][bit] == 0:
                nodes[at][bit] = len(nodes)
                nodes.append([0, 0])
            at = nodes[at][bit]
        nodes[at][_CODES[symbol] & 1] = -1 - symbol
    return nodes


def _build_steps() -> tuple[bytes, bytes, bytes, bytes]:
    """For each state and four bits: the next state, what to do, and the symbol emitted; and for
    each state whether a string may end in it, which is after less than eight bits that are all
    ones."""
    nodes = _build_tree()
    following, actions, symbols = [], [], []
    for state in range(len(nodes)):
        for bits in range(16):
            at, action, symbol = state, _SILENT, 0
            for shift in (3, 2, 1, 0):
                at = nodes[at][bits >> shift & 1]
                if at == -1 - _END:
                    at, action = 0, _FAILS
                    break
                if at < 0:
                    at, action, symbol = 0, _EMITS, -1 - at
            following.append(at)
            actions.append(action)
            symbols.append(symbol)
    ends = bytearray(len(nodes))
    at = 0
    for _ in range(8):
        ends[at] = 1
        at = nodes[at][1]
    return bytes(following), bytes(actions), bytes(symbols), bytes(ends)


_FOLLOWING, _ACTIONS, _SYMBOLS, _ENDS = _build_steps()


def huffman_decode(data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes | None:
    """The text between two positions; None when it is no valid code."""
    p: cython.p_const_uchar = data
    following: cython.p_const_uchar = _FOLLOWING
    actions: cython.p_const_uchar = _ACTIONS
    symbols: cython.p_const_uchar = _SYMBOLS
    ends: cython.p_const_uchar = _ENDS
    text = bytearray((end - start) * 8 // 5 + 1)
    out: cython.p_uchar = text
    size: cython.Py_ssize_t = 0
    state: cython.int = 0
    at: cython.Py_ssize_t = start
    while at < end:
        step: cython.int = state << 4 | p[at] >> 4
        if actions[step] == _EMITS:
            out[size] = symbols[step]
            size += 1
        elif actions[step] == _FAILS:
            return None
        step = following[step] << 4 | p[at] & 15
        if actions[step] == _EMITS:
            out[size] = symbols[step]
            size += 1
        elif actions[step] == _FAILS:
            return None
        state = following[step]
        at += 1
    if ends[state] == 0:
        return None
    return bytes(text[:size])


def huffman_size(data: bytes) -> int:
    """Bytes that `data` takes when encoded."""
    bits = 0
    for byte in data:
        bits += _LENGTHS[byte]
    return (bits + 7) >> 3


def huffman_encode(data: bytes) -> bytes:
    """`data` encoded, the last byte filled up with ones."""
    bits = 0
    length = 0
    for byte in data:
        bits = bits << _LENGTHS[byte] | _CODES[byte]
        length += _LENGTHS[byte]
    padding = -length % 8
    bits = bits << padding | (1 << padding) - 1
    return bits.to_bytes((length + padding) // 8, "big")
