"""The values that the store hands out: topic records with the pair that compare-and-set works on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec

from layout import records
from layout.errors import LayoutError
from layout.layouts import Layout
from metadata.errors import RecordDamaged
from metadata.stored_values import UNREADABLE, Long
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


class Leader(msgspec.Struct, frozen=True):
    """Who leads a topic, as it stands in the topic's record.

    A write of the leader is accepted only while this stands there, byte for byte: the term makes it grow, the nonce
    makes it unique even where a fail-over has lost the last one.
    """

    session: str
    term: Long
    nonce: str
    pulsar_url: str
    http_url: str

    @property
    def fence(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """None also for what no node of ours wrote: nobody leads by it."""
        try:
            return msgspec.json.decode(data, type=cls)
        except UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class StoredTopic:
    name: TopicName
    value: bytes
    version: Version
    ctime_ms: int
    mtime_ms: int
    leader_entry: bytes = b""  # as it is stored: what a take-over compares with
    activity: int = 0  # grows with every registration
    # Of segments that somebody serves: the session of that node, which may have ended since.
    owners: Mapping[int, str] = field(default_factory=dict, hash=False)

    @property
    def leader(self) -> Leader | None:
        return Leader.parse(self.leader_entry) if self.leader_entry else None


def layout_of(stored: StoredTopic) -> Layout:
    """What a record says, for those who write nothing; RecordDamaged where it cannot be read."""
    try:
        return records.decode_layout(stored.value)
    except LayoutError as error:
        raise RecordDamaged(f"The record of {stored.name} is damaged ({error}): restore it.") from error
