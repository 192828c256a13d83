"""Every failure of a command as one sentence for the user; a traceback is never the answer."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb


class CommandError(Exception):
    """A failure that a command words itself."""


def alone(error: BaseException) -> BaseException:
    """The one failure that nurseries wrapped in groups."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def sentence(error: BaseException) -> str:
    """What to tell the user about a failure."""
    if isinstance(error, (CommandError, *_meant_for_users())):
        return _in_one_line(str(error))
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
    frames = extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{place}: {text}. This is a defect of Vela; please report it."


def _in_one_line(text: str) -> str:
    # A server's sentence may quote names that others have chosen.
    from gateway.cli.graph_words import printable

    return printable(text)


def _meant_for_users() -> tuple[type[Exception], ...]:
    # Only a failure needs them, so only a failure waits for the imports.
    from gateway.admin_client import AdminError
    from gateway.binding import CannotListen
    from gateway.settings import SettingsError
    from layout.errors import LayoutError
    from metadata.errors import StoreError
    from metadata.traces.errors import TraceError
    from protocol.errors import ProtocolError

    return AdminError, CannotListen, LayoutError, ProtocolError, SettingsError, StoreError, TraceError
