from typing import Final, final

ENTRY: Final = 1
HARD_STATE: Final = 2
TRUNCATE: Final = 3
SEGMENT_END: Final = 4
CLEAN_CLOSE: Final = 5
CONFIGURATION: Final = 6
BASE: Final = 7
HEADER_SIZE: Final = 32
CRC_SIZE: Final = 4
RECORD_SIZE_MIN: Final = 40

def crc32c(seed: int, data: bytes) -> int: ...
def record_size(length: int) -> int: ...

@final
class Writer:
    offset: int
    previous: int
    salt: int
    def __init__(self, salt: int, previous: int, offset: int) -> None: ...
    def add(self, kind: int, index: int, term: int, payload: bytes, durable: int) -> bytes: ...

@final
class Record:
    kind: int
    index: int
    term: int
    durable: int
    previous: int
    crc: int
    size: int
    payload: bytes

def parse(buffer: bytes, offset: int, salt: int) -> Record | None: ...
def find_written_after(buffer: bytes, offset: int, end: int, salt: int) -> int: ...
