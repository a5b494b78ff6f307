"""Log lines on stderr, as key=value text or as JSON. Never one per request on hot routes."""

import json
import logging
import sys

from corvo.times import format_time

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"time={format_time(int(record.created * 1e9))} level={record.levelname.lower()} "
            f"msg={json.dumps(record.getMessage())}"
        )
        for key, value in _fields(record).items():
            line += f" {key}={value if str(value).isalnum() else json.dumps(str(value))}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": format_time(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def configure(level: str, style: str) -> None:
    """Send all log records to stderr; `style` is `text` or `json`. Extra members of a line are
    passed as `extra={"fields": {...}}`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler])
