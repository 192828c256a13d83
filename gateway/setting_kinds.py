"""The types a setting can have: how each is written, checked, shown, and what is allowed for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.host_names import parse_host
from gateway.logs import redact_url
from gateway.quantities import HostPort, parse_duration, parse_size, show_duration, show_size

EMBEDDED = "embedded"
ANY_HOST = "*"
STORE_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of setting; `parse` raises ValueError for whatever is not `allowed`."""

    metavar: str
    allowed: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    toml_type: type = str
    conceal: Callable[[str], str] = str


def _within(parse: Callable[[str], Any], low: Any, high: Any) -> Callable[[str], Any]:
    def bounded(text: str) -> Any:
        value = parse(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return bounded


def duration(low: str, high: str) -> Kind:
    return Kind(
        "DURATION",
        f"a duration such as 50ms, 3s, 5m or 1h, from {low} to {high}",
        _within(parse_duration, parse_duration(low), parse_duration(high)),
        show_duration,
    )


def size(low: str, high: str) -> Kind:
    return Kind(
        "SIZE",
        f"a size such as 512B, 64KB or 1MB, from {low} to {high}",
        _within(parse_size, parse_size(low), parse_size(high)),
        show_size,
        toml_type=int,
    )


def number(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
            raise ValueError(text)
        return int(text)

    return Kind("NUMBER", f"a whole number from {low} to {high}", _within(parse, low, high), toml_type=int)


def choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return Kind("|".join(words), "one of " + ", ".join(words), parse)


def url(*schemes: str) -> Kind:
    def parse(text: str) -> str:
        parts = urlsplit(text)  # drops line breaks and tabs without a word, hence the look at the text itself
        whole = parts.scheme in schemes and parts.hostname and parts.port and not re.search(r"\s", text)
        if not whole or parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(text)
        return text.rstrip("/")

    return Kind("URL", " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes), parse, conceal=redact_url)


def _parse_hosts(text: str) -> tuple[str, ...]:
    return tuple(host if host == ANY_HOST else parse_host(host) for host in map(str.strip, text.split(",")))


def _parse_store(text: str) -> str:
    # Only the scheme is judged here; what else a store URL may hold, its connection code knows.
    scheme, separator, rest = text.partition("://")
    if text != EMBEDDED and not (separator and rest and scheme in STORE_SCHEMES):
        raise ValueError(text)
    return text


def _parse_switch(text: str) -> bool:
    word = text.lower()
    if word not in _SWITCH_WORDS:
        raise ValueError(text)
    return _SWITCH_WORDS[word]


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~nobody
        raise ValueError(text) from None


def _show_path(path: Path) -> str:
    return str(path) if path.is_absolute() or path.parts[:1] == ("..",) else f"./{path}"


_SWITCH_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
ADDRESS = Kind("HOST:PORT", "HOST:PORT, with port 0 for any free port and IPv6 in [brackets]", HostPort.parse)
HOSTS = Kind(
    "HOST,…",
    "names or addresses of hosts with commas between them, or * for any",
    _parse_hosts,
    ",".join,
    toml_type=list,
)
FILE = Kind("FILE", "the path of a file", _parse_path, _show_path)
DIRECTORY = Kind("DIR", "the path of a directory", _parse_path, _show_path)
SWITCH = Kind("BOOL", "true or false", _parse_switch, lambda on: "true" if on else "false", toml_type=bool)
STORE = Kind(
    "URL",
    f"{EMBEDDED}, or a URL that starts with " + ", ".join(f"{scheme}://" for scheme in STORE_SCHEMES),
    _parse_store,
    conceal=redact_url,
)
