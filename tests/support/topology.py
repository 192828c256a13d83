"""What all topologies of test servers have in common."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

import redis

from tests.support.processes import ValkeyProcess

# Replicas log in as this user, so that a primary can lock them out and nobody else.
REPLICATION_USER = "replication"
REPLICATION_PASSWORD = "replica"
REPLICATION_OPTIONS: dict[str, str | int] = {
    "user": f"{REPLICATION_USER} on >{REPLICATION_PASSWORD} +psync +replconf +ping",
    "masteruser": REPLICATION_USER,
    "masterauth": REPLICATION_PASSWORD,
}


class Topology(ABC):
    """A running store, whatever it is made of."""

    kind: ClassVar[str]

    def __init__(self, servers: list[ValkeyProcess]) -> None:
        self.servers = servers
        self._changed = False

    @property
    @abstractmethod
    def url(self) -> str:
        """The store in Vela's URL syntax."""

    @abstractmethod
    def primaries(self) -> list[ValkeyProcess]:
        """The servers that take writes now."""

    @abstractmethod
    def client_for(self, key: str | bytes) -> redis.Redis:
        """A client of the primary that holds `key`."""

    @property
    def disturbed(self) -> bool:
        """True once a server was signalled or roles or slots were moved: better start a new one than repair it."""
        return self._changed or any(server.disturbed for server in self.servers)

    def flush(self) -> None:
        """No data, no cached scripts, and the configuration of the first start."""
        for server in self.primaries():
            server.reset()

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cut_replication(primary: ValkeyProcess) -> None:
    """From now on nothing that is written to `primary` reaches its replicas; they keep asking and are refused."""
    primary.command("ACL", "SETUSER", REPLICATION_USER, "off")
    primary.command("CLIENT", "KILL", "TYPE", "replica")


def restore_replication(primary: ValkeyProcess) -> None:
    primary.command("ACL", "SETUSER", REPLICATION_USER, "on")


def replica_is_in_step(replica: ValkeyProcess) -> bool:
    state = replica.info("replication")
    return bool(state["role"] == "slave" and state["master_link_status"] == "up")
