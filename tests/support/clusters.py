"""A real cluster of Valkey or Redis servers whose slots can be moved and whose shards can fail over under a test."""

from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from tests.support.ports import HOST, ReservedPort
from tests.support.processes import ValkeyProcess
from tests.support.topology import (
    REPLICATION_OPTIONS,
    Topology,
    cut_replication,
    replica_is_in_step,
)
from tests.support.waiting import wait_until

SLOTS = 16_384
# Milliseconds of silence until a node counts as failed; a replica is elected about a second after that.
NODE_TIMEOUT = 1_500


class ClusterNode(ValkeyProcess):
    """A server in cluster mode with a bus port of its own choice (the default, port + 10000, may be taken)."""

    def __init__(self, program: Path | None = None, /, **options: str | int) -> None:
        self._bus = ReservedPort()
        cluster_options: dict[str, str | int] = {
            "cluster_enabled": "yes",
            "cluster_port": self._bus.number,
            "cluster_node_timeout": NODE_TIMEOUT,
            # However long it was cut off, a replica may stand for election.
            "cluster_replica_validity_factor": 0,
        }
        super().__init__(program, **(REPLICATION_OPTIONS | cluster_options | options))
        self.id = ""

    def wait_ready(self) -> None:
        super().wait_ready()
        self.id = _text(self.command("CLUSTER", "MYID"))

    def meet(self, other: "ClusterNode") -> None:
        self.command("CLUSTER", "MEET", HOST, other.port, other._bus.number)

    def state(self) -> dict[str, str]:
        return dict(line.split(":", 1) for line in _text(self.command("CLUSTER", "INFO")).split())

    def close(self) -> None:
        super().close()
        self._bus.release()


class Cluster(Topology):
    kind = "cluster"

    def __init__(self, nodes: list[ClusterNode], program: Path | None = None, /, **options: str | int) -> None:
        super().__init__(list(nodes))
        self.nodes = nodes
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self._witness().port}"

    def primaries(self) -> list[ValkeyProcess]:
        """The owners of slots, in the order of their first slot, as a live node sees them."""
        return list(self.shards())

    def shards(self) -> list[ClusterNode]:
        return list(dict.fromkeys(node for _, _, node in self._ranges()))

    def owner(self, slot: int) -> ClusterNode:
        return next(node for first, last, node in self._ranges() if first <= slot <= last)

    def owner_of(self, key: str | bytes) -> ClusterNode:
        return self.owner(slot_of(key))

    def client_for(self, key: str | bytes) -> redis.Redis:
        return self.owner_of(key).client()

    def replicas_of(self, primary: ClusterNode) -> list[ClusterNode]:
        fields = [line.split() for line in _text(self._witness().command("CLUSTER", "NODES")).splitlines()]
        ids = {line[0] for line in fields if line[3] == primary.id}
        return [node for node in self.nodes if node.id in ids]

    def add_primary(self) -> ClusterNode:
        """A new empty primary that every node knows; `move_slot` gives it something to do."""
        self._changed = True
        node = ClusterNode(self._program, **self._options)
        self.nodes.append(node)
        self.servers.append(node)
        node.start()
        for other in self._live():
            if other is not node:
                node.meet(other)
        self.wait_settled()
        return node

    def begin_move(self, slot: int, to: ClusterNode) -> "SlotMove":
        """Open a slot move and leave it open: keys not here are answered with ASK, half-moved sets with TRYAGAIN."""
        self._changed = True
        return SlotMove(self, slot, self.owner(slot), to)

    def move_slot(self, slot: int, to: ClusterNode) -> None:
        move = self.begin_move(slot, to)
        move.migrate()
        move.finish()

    def cut_replication(self, primary: ClusterNode) -> None:
        """What is written to `primary` from now on is lost when its shard fails over."""
        self._changed = True
        cut_replication(primary)

    def fail_over(self, primary: ClusterNode, *, kill: bool = True) -> ClusterNode:
        """Give the shard of `primary` to its replica and return that: after a crash, or in agreement of both."""
        self._changed = True
        (replica,) = self.replicas_of(primary)
        if kill:
            primary.kill()
        else:
            replica.command("CLUSTER", "FAILOVER")

        def agreed() -> bool:
            return all(replica in _owners(node, self.nodes) for node in self._live())

        wait_until(agreed, within=30)
        wait_until(lambda: all(node.state()["cluster_state"] == "ok" for node in self._live()), within=30)
        return replica

    def wait_settled(self) -> None:
        """Until every live node knows every other one, all slots are served and all replicas are in step."""
        wait_until(self._settled, within=30)

    def _settled(self) -> bool:
        live = self._live()
        for node in live:
            state = node.state()
            if state["cluster_state"] != "ok" or int(state["cluster_known_nodes"]) != len(self.nodes):
                return False
            if "handshake" in _text(node.command("CLUSTER", "NODES")):
                return False
        owners = [_owners(node, self.nodes) for node in live]
        return all(seen == owners[0] for seen in owners) and all(
            replica_is_in_step(node) for node in live if node.info("replication")["role"] == "slave"
        )

    def _live(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]

    def _witness(self) -> ClusterNode:
        return self._live()[0]

    def _ranges(self) -> list[tuple[int, int, ClusterNode]]:
        by_port = {node.port: node for node in self.nodes}
        answer = _slots(self._witness())
        return sorted(((first, last, by_port[port]) for first, last, port in answer), key=lambda part: part[0])


class SlotMove:
    """A slot on its way: created open, ended by `finish`."""

    def __init__(self, cluster: Cluster, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = source
        self.target = target
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def keys(self) -> list[bytes]:
        """What is still at the source."""
        found: list[str | bytes] = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000)
        return sorted(key.encode() if isinstance(key, str) else key for key in found)

    def migrate(self, *keys: bytes) -> None:
        """Move the named keys, or all that are left."""
        chosen = keys or tuple(self.keys())
        if chosen:
            self.source.command("MIGRATE", HOST, self.target.port, "", 0, 5000, "KEYS", *chosen)

    def finish(self) -> None:
        """Hand the slot over; the source must be empty of it. The target hears first, or the slot would be nobody's."""
        self.target.command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
        wait_until(
            lambda: all(_owner(node, self.slot) == self.target.port for node in self.cluster.nodes if node.running)
        )


def start_cluster(program: Path | None = None, /, shards: int = 3, replicas: int = 0, **options: str | int) -> Cluster:
    """`shards` primaries with equal shares of the slots and `replicas` for each, settled."""
    nodes = [ClusterNode(program, **options) for _ in range(shards * (1 + replicas))]
    cluster = Cluster(nodes, program, **options)
    try:
        for node in nodes:
            node.spawn()
        for number, node in enumerate(nodes, start=1):
            node.wait_ready()
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number)
        primaries = nodes[:shards]
        for number, node in enumerate(primaries):
            first, last = number * SLOTS // shards, (number + 1) * SLOTS // shards - 1
            node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        # Everybody meets everybody: left to gossip, introductions take seconds.
        for number, node in enumerate(nodes):
            for other in nodes[:number]:
                node.meet(other)
        cluster.wait_settled()
        for number, node in enumerate(nodes[shards:]):
            node.command("CLUSTER", "REPLICATE", primaries[number % shards].id)
        cluster.wait_settled()
        wait_until(lambda: all(len(cluster.replicas_of(node)) == replicas for node in primaries))
    except BaseException:
        cluster.close()
        raise
    return cluster


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _slots(node: ClusterNode) -> list[tuple[int, int, int]]:
    """First slot, last slot and port of the primary, per range, as `node` sees it."""
    return [(part[0], part[1], part[2][1]) for part in node.command("CLUSTER", "SLOTS")]


def _owner(node: ClusterNode, slot: int) -> int | None:
    return next((port for first, last, port in _slots(node) if first <= slot <= last), None)


def _owners(node: ClusterNode, nodes: list[ClusterNode]) -> set[ClusterNode]:
    ports = {port for _, _, port in _slots(node)}
    return {candidate for candidate in nodes if candidate.port in ports}


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
