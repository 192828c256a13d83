"""What the admin API needs from the rest of the node, handed in by whoever puts the node together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from controller.transitions import Transitions
from gateway.http.admission import AdmissionLimits
from metadata.store import TopicStore


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """`readiness` gives the reasons why the node cannot serve, none when it can; `metrics` the Prometheus text."""

    store: TopicStore
    transitions: Transitions
    readiness: Callable[[], list[str]]
    metrics: Callable[[], bytes]
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    cluster: str = "standalone"


# How a handler asks for them.
Ports = NamedDependency[SkipValidation[AdminPorts]]
