"""Service URLs: where a server listens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from protocol.client.errors import BadServiceUrl

SCHEME = "pulsar"
DEFAULT_PORT = 6650


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # brackets without an IPv6 address, a port that is none
            raise _unusable(url) from None
        # urlsplit drops line breaks and tabs without a word, hence the look at the text itself.
        if parts.scheme != SCHEME or not parts.hostname or port == 0 or re.search(r"[\s,\x00]", url):
            raise _unusable(url)
        if "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
            raise _unusable(url)
        return cls(parts.hostname, DEFAULT_PORT if port is None else port)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}://{self.authority}"


def _unusable(url: str) -> BadServiceUrl:
    return BadServiceUrl(
        f"{url[:200]!r} is no address of a server: give one host and port, as in {SCHEME}://127.0.0.1:{DEFAULT_PORT}."
    )
