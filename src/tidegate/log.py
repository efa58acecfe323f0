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
_AUTHORITY: Final = re.compile(r"://([^\s\"'<>?]*)")
_PRIVATE_KEY: Final = re.compile(
    r"(-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----).*?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)", re.DOTALL
)
_VALUE: Final = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)(?:\\*[\"'])?[ \t]*+[=:][ \t]*+(?P<quote>\\*[\"'])?"
)
_NAMES: Final = re.compile(
    r"(?i)password|passwd|passphrase|pwd|secret|token|credential|authorization|sasl[-_.]?username|schema[-_.]?registry"
    r"|(?:access|account|api|private|shared|sas)[-_.]?key|(?:^|[-_.])sig(?:nature)?$"
)
_PLAIN_END: Final = re.compile(r"[&\r\n]|$")


def redact(text: str) -> str:
    """The text with private keys, user info of URIs, and values of secret options hidden.

    A value in quotes ends with its quote, also in JSON within JSON. Any other value ends with `&` or the
    line, which may hide too much, but never too little. Takes time linear in the text.
    """
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}", text)
    text = _AUTHORITY.sub(_without_user, text)
    parts, at = [], 0
    while (found := _VALUE.search(text, at)) is not None:
        parts.append(text[at : found.end()])
        at = found.end()
        if _NAMES.search(found["name"]):
            at = _end_of_value(text, at, found["quote"])
            parts.append(HIDDEN)
    return "".join(parts) + text[at:]


def _without_user(authority: re.Match[str]) -> str:
    """The text after `://` without everything up to the last `@`, as a password may contain any character."""
    _, at, rest = authority[1].rpartition("@")
    return f"://{HIDDEN}@{rest}" if at else authority[0]


def _end_of_value(text: str, at: int, quote: str | None) -> int:
    """The end of a secret that begins at `at`; `quote`: its opening quote, with backslashes before it."""
    if quote is not None:
        close = text.find(quote, at)
        while close >= 0 and len(quote) - 1 != _backslashes(text, close + len(quote) - 1):
            close = text.find(quote, close + len(quote))
        return close if close >= 0 else len(text)
    end = _PLAIN_END.search(text, at)
    return end.start() if end is not None else len(text)


def _backslashes(text: str, at: int) -> int:
    """The number of backslashes before a place."""
    before = text[max(0, at - 64) : at]
    return len(before) - len(before.rstrip("\\"))


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
    return redact(record.getMessage()), {
        k: redact(str(v)) if isinstance(v, str) else v for k, v in fields.items()
    }


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
    """One JSON line; values that JSON does not know are written as text."""
    return json.dumps(_as_printed(body), default=lambda value: redact(str(value)), ensure_ascii=False)


def _as_printed(value: Any) -> Any:
    """The same value with each text as it prints itself; JSON would write the content of a `Secret`."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _as_printed(one) for name, one in value.items()}
    return [_as_printed(one) for one in value] if isinstance(value, list | tuple) else value
