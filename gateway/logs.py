"""Logging to standard error, for people by default and as JSON lines for machines; no secret gets into it."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

HIDDEN = "***"

_SECRET_PARAMETER = re.compile(r"([?&][^=&#]*(?:password|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)
# What the logging module itself puts on a record; anything else came in through `extra=`.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redact_url(url: str) -> str:
    """The URL without its password, fit for logs and terminals.

    When in doubt it hides too much: a password may hold unescaped `/`, `?` or `@`, so all up to the last `@`
    counts as credentials, and those without a colon may be a user or a password put in the wrong place.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    credentials, at, host = rest.rpartition("@")
    if at:
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:{HIDDEN}@{host}" if colon else f"{HIDDEN}@{host}"
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", f"{scheme}{separator}{rest}")


class TextFormatter(logging.Formatter):
    """`02:41:07.123 INFO    gateway.node  message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        line = f"{moment} {record.levelname:<7} {record.name}  {_one_line(record.getMessage() + extra)}"
        return _with_traceback(line, _traceback(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, what came in `extra=`, and any traceback."""

    def __init__(self) -> None:
        super().__init__()
        # Only servers that log JSON pay for the import.
        import msgspec

        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        # An extra field never replaces one of ours: the line's meaning must not depend on the caller.
        fields |= {name: value for name, value in _extra(record).items() if name not in fields}
        if traceback := _traceback(self, record):
            fields["traceback"] = traceback
        return self._encode(fields).decode()


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send all log records of this process to `stream` (standard error), replacing earlier handlers."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # httpx writes a line per request at INFO, which is our own business and not the operator's.
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _with_traceback(line: str, traceback: str) -> str:
    return f"{line}\n{traceback}" if traceback else line


def _one_line(text: str) -> str:
    # A peer chooses topic names and error texts; a line break in one must not forge a log line of ours.
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
