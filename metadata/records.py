"""The values that the store hands out: topic records with the pair that compare-and-set works on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.names import TopicName

_ETAG = re.compile(r'(?:W/)?"([0-9a-f]{16})\.([0-9]{1,18})"')


@dataclass(frozen=True, slots=True)
class Version:
    """A record's identity since its creation, and how often it was written since."""

    incarnation: str
    number: int

    @property
    def etag(self) -> str:
        return f'"{self.incarnation}.{self.number}"'

    @classmethod
    def parse_etag(cls, text: str) -> Version | None:
        """The version that `etag` wrote, None where it is not one of ours."""
        match = _ETAG.fullmatch(text.strip())
        return cls(match[1], int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class StoredTopic:
    name: TopicName
    value: bytes
    version: Version
    ctime_ms: int
    mtime_ms: int
