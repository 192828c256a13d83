"""Real stores in every topology that Vela supports: standalone, primary with replica and Sentinel, cluster."""

from pathlib import Path

import redis

from tests.support.clusters import Cluster, SlotMove, start_cluster
from tests.support.processes import ValkeyProcess
from tests.support.replicated import Replicated, start_replicated
from tests.support.topology import Topology

__all__ = [
    "Cluster",
    "Replicated",
    "SlotMove",
    "Standalone",
    "Topology",
    "ValkeyProcess",
    "start_cluster",
    "start_replicated",
    "start_standalone",
]


class Standalone(Topology):
    """One server."""

    kind = "standalone"

    def __init__(self, server: ValkeyProcess) -> None:
        super().__init__([server])
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    def primaries(self) -> list[ValkeyProcess]:
        return [self.server]

    def client_for(self, key: str | bytes) -> redis.Redis:
        return self.server.client()


def start_standalone(program: Path | None = None, /, **options: str | int) -> Standalone:
    return Standalone(ValkeyProcess(program, **options).start())
