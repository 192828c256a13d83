"""A recording by a real server, made while topics are created, split and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metadata.traces.events import Kind
from tests.e2e.vela_process import VelaServer
from tests.gateway.recorder.recorded import events_of
from tests.support.waiting import wait_until

NAMESPACES: Final = ("shop/orders", "shop/returns", "lab/probes")
_TOPICS: Final = 16  # in each of them; every one is split, and every other one deleted
CREATED: Final = len(NAMESPACES) * _TOPICS
DELETED: Final = CREATED // 2
# More than the hundred that synthesis learns from.
CHANGES: Final = CREATED + CREATED + DELETED
_OF_TOPICS: Final = (Kind.CREATED, Kind.CHANGED, Kind.DELETED)


def record_server(directory: Path, trace: Path) -> Path:
    """Everything that happened, in a trace that is complete."""
    with VelaServer.start(directory, "--record", str(trace)) as server:
        for number in range(_TOPICS):
            for namespace in NAMESPACES:
                path = f"/admin/v2/scalable/{namespace}/topic-{number}"
                assert server.request("PUT", f"{path}?numInitialSegments=1").is_success
                assert server.request("POST", f"{path}/split/0").is_success
                if number % 2:
                    assert server.request("DELETE", path).is_success
        wait_until(lambda: sum(event.kind in _OF_TOPICS for event in events_of(trace)) == CHANGES)
        assert server.stop().code == 0
    return trace
