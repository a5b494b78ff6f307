import re

from corvo._fast.replies import Request

HOST: re.Pattern[bytes]
REQUEST_ID: re.Pattern[bytes]

def find_byte(data: bytes, byte: int, start: int) -> int: ...
def find_head_end(data: bytes, start: int) -> int: ...
def read_fields(request: Request, head: bytes, fields_max: int) -> None: ...
