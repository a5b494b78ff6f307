from corvo._fast.http.exchange import Request

class Field:
    """One header field. `fault` says what is wrong with it, None = nothing."""

    name: bytes
    value: bytes
    size: int
    fault: str | None
    def __init__(self, name: bytes, value: bytes) -> None: ...

def check_trailers(fields: list[Field]) -> str | None: ...
def read_fields(request: Request, fields: list[Field]) -> str | None: ...
def read_head(request: Request, fields: list[Field] | None) -> str | None: ...
