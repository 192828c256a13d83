"""Names that tell nothing: a keyed hash of each part of a name by itself, so that the structure stays.

Under one key the same text always becomes the same pseudonym, wherever it stands; without the key nobody can try out
which name it was.
"""

from __future__ import annotations

import os
from base64 import b32encode
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from layout import records
from layout.errors import InvalidRecord
from layout.layouts import Layout
from layout.segments import NO_UNKNOWN_FIELDS, Segment
from metadata.traces.errors import TraceError

_KEY_BYTES: Final = 32
# Fewer can be tried out one by one.
_SHORTEST_KEY_FILE: Final = 16
# 80 bits: among a billion names two meet with a chance of one in a million. They make 16 letters.
_DIGEST_BYTES: Final = 10
# Names remembered, so that a topic that changes often is not hashed each time.
_REMEMBERED: Final = 100_000


def random_key() -> bytes:
    """A key that nobody can give again."""
    return os.urandom(_KEY_BYTES)


def read_key(file: Path) -> bytes:
    """The key that a file stands for, whatever is in it."""
    try:
        content = file.read_bytes().strip()
    except OSError as error:
        raise TraceError(f"The key file {file} cannot be read: {error.strerror}.") from None
    if len(content) < _SHORTEST_KEY_FILE:
        raise TraceError(
            f"The key file {file} is too short: put at least {_SHORTEST_KEY_FILE} random bytes into it, "
            f"for example with: openssl rand -hex 32"
        )
    return blake2b(content, digest_size=_KEY_BYTES, person=b"vela-trace-key").digest()


class Pseudonyms:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._names: dict[str, str] = {}

    @property
    def check(self) -> str:
        """Tells whether two traces were made with the same key, and nothing else about it."""
        return blake2b(b"", digest_size=_DIGEST_BYTES, key=self._key, person=b"vela-check").hexdigest()

    def name(self, text: str) -> str:
        """The pseudonym of a tenant, a namespace without its tenant, a topic, or a property's name or value."""
        pseudonym = self._names.get(text)
        if pseudonym is None:
            if len(self._names) >= _REMEMBERED:
                self._names.clear()
            digest = blake2b(text.encode(), digest_size=_DIGEST_BYTES, key=self._key).digest()
            pseudonym = self._names[text] = b32encode(digest).decode().lower()
        return pseudonym

    def path(self, text: str) -> str:
        """The pseudonym of `tenant/namespace`: each part by itself."""
        return "/".join(map(self.name, text.split("/")))

    def record(self, value: bytes) -> bytes | None:
        """A stored record without anything that somebody has named; None if it cannot be read.

        What this version does not know is left out, because it could hold names; so are policies, which others write.
        """
        try:
            record = records.decode(value)
        except InvalidRecord:
            return None
        segments = {number: self._segment(segment) for number, segment in record.layout.segments.items()}
        layout = Layout(record.layout.epoch, record.layout.next_segment_id, MappingProxyType(segments))
        properties = {self.name(key): self.name(text) for key, text in record.properties.items()}
        return records.encode(
            replace(
                record,
                layout=layout,
                properties=properties,
                auto_scale_policy=None,
                unknown_fields=NO_UNKNOWN_FIELDS,
            )
        )

    def _segment(self, segment: Segment) -> Segment:
        old = segment.legacy_topic_name
        return msgspec.structs.replace(
            segment,
            legacy_topic_name=None if old is None else self._topic_url(old),
            unknown_fields=NO_UNKNOWN_FIELDS,
        )

    def _topic_url(self, text: str) -> str:
        scheme, separator, rest = text.partition("://")
        return f"{scheme}://{self.path(rest)}" if separator else self.name(text)
