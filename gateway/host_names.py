"""Names of hosts as they stand in URLs, headers and settings, in one form that can be compared."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?", re.ASCII)
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]{0,5})?", re.ASCII)


def parse_host(text: str) -> str:
    """In small letters, without brackets and without a dot at the end; ValueError for what is no name or address."""
    if text.startswith("[") and text.endswith("]"):
        return str(IPv6Address(text[1:-1]))
    host = text.lower().removesuffix(".")
    if ":" in host:
        return str(IPv6Address(host))
    if not _NAME.fullmatch(host):
        raise ValueError(text)
    return host


def host_of_authority(text: str) -> str:
    """Of `host` or `host:port`, as a Host header has it; ValueError for what is neither."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return parse_host(match[1])


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a parsed host is, None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
