"""Format of log lines on stderr: key=value text or JSON.

Hot routes write no log line per request.
"""

import json
import logging
import re
import sys

from corvo.platform.durations import format_time

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_NAMES = {number: name for name, number in _LEVELS.items()} | {logging.CRITICAL: "error"}
_BARE = re.compile(r"[\w.:/-]+", re.ASCII)  # values that need no quotes


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = format_time(int(record.created * 1e9))
        line = f"time={at} level={_level(record)} msg={json.dumps(record.getMessage())}"
        for key, value in _fields(record).items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            line += f" {key}={text if _BARE.fullmatch(text) else json.dumps(text)}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": format_time(int(record.created * 1e9)),
            "level": _level(record),
            "logger": record.name,
            "msg": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _level(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def configure(level: str, style: str) -> None:
    """Send all log records to stderr; `style` is `text` or `json`.

    Callers pass extra fields of a line as `extra={"fields": {...}}`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
