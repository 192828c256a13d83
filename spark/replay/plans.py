"""What a replay is to do, as one value that the driver makes and every task is given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from protocol.errors import InvalidName
from protocol.names import NamespaceName
from spark.errors import JobError
from spark.profiles import ReconnectPattern

_GOLDEN_RATIO = (1 + math.sqrt(5)) / 2


class ReplayPlan(msgspec.Struct, frozen=True):
    """One replay. `namespaces` are those of the trace; in the store each has `prefix` before its name.

    Watcher i lives in task i modulo `tasks` and watches namespace i modulo their number; so do connections: i lives
    in task i modulo `tasks`, and the watchers of a task go round its connections.
    """

    run_id: str
    target: str  # pulsar://host:port
    store_url: str
    tasks: int
    namespaces: tuple[str, ...]
    prefix: str
    watchers: int
    connections: int  # of all tasks together
    topic_share: float = 0.0  # of the watchers: these watch the DAG of one topic
    speed: float = 1.0
    first_state_s: float = 60.0  # for all watchers to show what is there at the start
    settle_s: float = 30.0  # for all watchers to show what the store holds, after the last write
    reconnect: ReconnectPattern = ReconnectPattern()
    values: bool = True  # write the recorded values, where the trace has them
    patience_s: float = 10.0  # with a store or a target that has gone away in the middle
    lead_s: float = 3.0  # between the first word about the start and the start; the barrier takes a second of it
    seed: int = 0  # of the reconnect pattern's dice

    def check(self) -> None:
        """Refuse what no task could do; the driver calls this before it starts any."""
        if self.tasks < 1:
            raise JobError("A replay needs at least one task: give it a Spark master with a free slot.")
        if not self.speed > 0 or math.isinf(self.speed):
            raise JobError(f"A replay cannot run at speed {self.speed:g}: give a number above 0.")
        if self.watchers < 0 or self.connections < 0:
            raise JobError("The numbers of watchers and connections cannot be negative.")
        if self.watchers and self.connections < self.tasks:
            raise JobError(
                f"{self.tasks} tasks with watchers need a connection each: "
                f"allow at least {self.tasks} connections, not {self.connections}."
            )
        if not 0 <= self.topic_share <= 1:
            raise JobError(f"The share of topic watchers lies between 0 and 1, and {self.topic_share:g} does not.")
        for namespace in self.namespaces:
            try:
                self.namespace_in_store(namespace)
            except InvalidName as error:
                raise JobError(f"The topics of {namespace} have no place in the store: {error}") from error
        if not self.namespaces and self.watchers:
            raise JobError("The trace names no namespace, so there is nothing to watch: record for longer.")

    def namespace_in_store(self, namespace: str) -> NamespaceName:
        """Where the topics of one of the trace's namespaces are written."""
        tenant, _, name = namespace.partition("/")
        return NamespaceName(tenant, self.prefix + name)

    def watchers_of(self, task: int) -> Sequence[int]:
        return range(task, self.watchers, self.tasks)

    def connections_of(self, task: int) -> int:
        """How many connections a task opens: none that would be without a watcher."""
        return min(len(range(task, self.connections, self.tasks)), len(self.watchers_of(task)))

    def watches_topic(self, watcher: int) -> bool:
        """Whether a watcher is one of those that watch a topic.

        Multiples of the golden ratio are spread evenly, and unlike those of a simple fraction they fall into no step
        with the numbers of tasks and namespaces.
        """
        return (watcher + 1) * _GOLDEN_RATIO % 1 < self.topic_share

    @property
    def progress_key(self) -> str:
        """A hash in the store, one field per task, with a `Progress` as JSON."""
        return f"/replay/{self.run_id}"


class Progress(msgspec.Struct, frozen=True):
    """How far a task is, written into the store once a second."""

    phase: str  # seeding, connecting, replaying, settling, done
    seeded: int = 0
    written: int = 0  # answered by the store
    failed: int = 0  # of those
    pushes: int = 0
    connected: int = 0  # watchers that have what they watch
    behind_ms: float = 0.0  # how late the last write was sent
