"""What the admin API needs from the rest of the node, handed in by whoever puts the node together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from controller.classic import ClassicTransitions
from controller.garbage import GarbageCollector
from controller.leaders import Leaders
from controller.migration import Migrations
from controller.seeking import Access
from controller.segment_port import SegmentPort
from controller.transitions import Transitions
from gateway.http.admission import AdmissionLimits
from gateway.http.browsers import AdminHosts
from metadata.leadership import Leaderships
from metadata.peers import Peers
from metadata.registrations import Registrations
from metadata.store import TopicStore
from segments.schemas import SchemaRegistry


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """`readiness` gives the reasons why the node cannot serve, none when it can; `metrics` the Prometheus text."""

    store: TopicStore
    transitions: Transitions
    classic: ClassicTransitions
    migrations: Migrations
    registrations: Registrations
    leaders: Leaders
    leaderships: Leaderships
    peers: Peers
    segments: SegmentPort
    garbage: GarbageCollector
    schemas: SchemaRegistry
    readiness: Callable[[], list[str]]
    metrics: Callable[[], bytes]
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    hosts: AdminHosts = field(default_factory=AdminHosts)
    cluster: str = "standalone"

    @property
    def cursors(self) -> Access:
        return Access(self.registrations, self.segments, self.store.commands)


# How a handler asks for them.
Ports = NamedDependency[SkipValidation[AdminPorts]]
