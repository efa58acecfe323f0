"""Logging for operators: one stable lowercase message, details in fields; secrets never.

`setup` chooses between lines for people and JSON lines (time, level, message, fields). Use the standard
`logging` module with `extra={"fields": {...}}`, or `event(logger, level, message, **fields)`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

HIDDEN: Final = "xxxxx"
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET: Final = re.compile(
    r"(?i)((?:[\w.-]*(?:password|passwd|secret|token|access[-_.]key)[\w.-]*|sasl\.username)[\"']?\s*[=:]\s*[\"']?)"
    r"([^&\s\"',;}]+)"
)


def redact(text: str) -> str:
    """The text with user info of URIs and values of secret options hidden."""
    return _SECRET.sub(rf"\1{HIDDEN}", _USERINFO.sub(f"{HIDDEN}@", text))


def event(logger: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Log a message with fields."""
    logger.log(level, message, extra={"fields": fields})


def setup(*, json_lines: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send the log to `stream` (stderr by default). May be called again; the last call counts."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _Human())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "uvicorn", "uvicorn.access", "httpx", "httpcore", "py4j"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _parts(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return redact(record.getMessage()), {k: redact(v) if isinstance(v, str) else v for k, v in fields.items()}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = _parts(record)
        head = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return redact_json({**head, "message": message, **fields})


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = _parts(record)
        error = fields.pop("error", "")
        shown = " ".join(f"{k}={v}" for k, v in fields.items())
        line = f"{_time(record)} {record.levelname:<7} {message}" + (f"  {shown}" if shown else "")
        return f"{line}\n{error}" if error else line


def redact_json(body: dict[str, Any]) -> str:
    """One JSON line; what JSON does not know is written as text."""
    return json.dumps(body, default=lambda value: redact(str(value)), ensure_ascii=False)
