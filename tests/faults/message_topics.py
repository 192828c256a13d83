"""The topics of message runs, scalable and classic: their names, how they are made, and where their logs are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from layout.layouts import Layout
from metadata import keys
from protocol.names import TopicName
from tests.e2e.controller_cluster import path_of
from tests.e2e.vela_process import SCALABLE

TopicKind: TypeAlias = Literal["scalable", "classic", "partitioned"]
CLASSIC = "/admin/v2/persistent/public/default"


@dataclass(frozen=True, slots=True)
class Topic:
    local: str
    kind: TopicKind
    partitions: int

    @property
    def name(self) -> str:
        return f"{'topic' if self.kind == 'scalable' else 'persistent'}://public/default/{self.local}"

    @property
    def creation(self) -> tuple[str, Any]:
        """The path that it is made by, and what is put there."""
        match self.kind:
            case "scalable":
                return f"{SCALABLE}/{self.local}?numInitialSegments=2", None
            case "classic":
                return f"{CLASSIC}/{self.local}", None
            case "partitioned":
                return f"{CLASSIC}/{self.local}/partitions", self.partitions

    @property
    def stats_path(self) -> str:
        match self.kind:
            case "scalable":
                return f"{SCALABLE}/{self.local}/stats"
            case "classic":
                return f"{CLASSIC}/{self.local}/stats"
            case "partitioned":
                return f"{CLASSIC}/{self.local}/partitioned-stats"

    @property
    def record_key(self) -> bytes:
        """Of a scalable one."""
        return keys.record_key(path_of(self.local))

    def log_keys(self, layout: Layout | None) -> list[bytes]:
        """Of the hashes that say who owns each log."""
        if layout is not None:
            path = path_of(self.local)
            return [keys.segment_key(path, segment.descriptor) for segment in layout.segments.values()]
        whole = TopicName.parse(self.name)
        if self.kind == "classic":
            return [keys.classic_key(keys.path_of(whole))]
        names = (TopicName.parse(f"{self.name}-partition-{number}") for number in range(self.partitions))
        return [keys.classic_key(keys.path_of(name)) for name in names]
