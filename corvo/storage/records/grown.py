"""Records that got fields after a release: those of an earlier format lack the fields.

A record whose rows all have the same `since` needs only `decode_fields`, which reads one format.
"""

from ast import literal_eval
from typing import Any, Final

from corvo._fast.codec.layouts import CodecError, decode_fields
from corvo.records import Field, Record, formats, layout

_ZEROS: Final[dict[str, Any]] = {
    **dict.fromkeys("sno", ""),
    **dict.fromkeys("uiqt", 0),
    "b": b"",
    "f": False,
}


def decode_grown(record: Record, data: bytes) -> tuple[Any, ...]:
    """Decode a record of any format; fields that it lacks have their defaults.

    A format reads exactly its own bytes: a longer one is truncated, a shorter one leaves bytes
    over. The error of the newest format is raised when none fits.
    """
    newest, *earlier = formats(record)
    try:
        return decode_fields(layout(newest), data)
    except CodecError as error:
        for fields in earlier:
            try:
                values = decode_fields(layout(fields), data)
            except CodecError:
                continue
            return values + tuple(map(_default, newest[len(fields) :]))
        raise error


def _default(field: Field) -> Any:
    if field.default:
        return literal_eval(field.default)
    return _ZEROS.get(field.kind, [])
