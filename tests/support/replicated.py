"""A primary with one replica under a real Sentinel."""

from pathlib import Path
from typing import Any

import redis

from tests.support.ports import HOST
from tests.support.processes import SentinelProcess, ValkeyProcess
from tests.support.topology import (
    REPLICATION_OPTIONS,
    Topology,
    cut_replication,
    replica_is_in_step,
    restore_replication,
)
from tests.support.waiting import wait_until

SERVICE = "vela"

# Sentinel takes a pause of 2 s in itself for a broken clock and then does nothing for 30 s; on a busy test machine
# that would be a random failure. The shorter periods make a fail-over a matter of a second or two.
SENTINEL_TIMING = {
    "tilt-trigger": 600_000,
    "info-period": 200,
    # Five of these is how old the last word of a replica may be at an election, and it comes once a second.
    "ping-period": 500,
    "ask-period": 100,
    "publish-period": 200,
    "election-timeout": 1_000,
}
# Milliseconds without an answer until the primary counts as down. Less, and a busy machine looks like a dead server.
DOWN_AFTER = 1_000


class Replicated(Topology):
    """`primary` and `replica` are the roles of now: a fail-over swaps them."""

    kind = "replica"

    def __init__(self, primary: ValkeyProcess, replica: ValkeyProcess, sentinel: SentinelProcess) -> None:
        super().__init__([primary, replica, sentinel])
        self.primary = primary
        self.replica = replica
        self.sentinel = sentinel

    @property
    def url(self) -> str:
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{SERVICE}"

    def primaries(self) -> list[ValkeyProcess]:
        return [self.primary]

    def client_for(self, key: str | bytes) -> redis.Redis:
        return self.primary.client()

    def flush(self) -> None:
        super().flush()
        wait_until(lambda: self.primary.client().wait(1, 1000) == 1)

    def cut_replication(self) -> None:
        """What is written from now on is lost by the next fail-over. Fail over within 10 s, or Sentinel declines."""
        self._changed = True
        cut_replication(self.primary)

    def restore_replication(self) -> None:
        restore_replication(self.primary)
        self._wait_in_step()

    def promote(self) -> None:
        """Tell Sentinel to fail over now, with the primary alive; it becomes the replica and drops what it had more."""
        self._changed = True
        # A Sentinel that has not yet heard from the replica answers NOGOODSLAVE.
        wait_until(self._order_fail_over)
        self._wait_for_promotion()
        self._wait_in_step()

    def fail_over(self) -> None:
        """Kill the primary and wait until Sentinel has noticed and promoted the replica; `rejoin` repairs the rest."""
        self.primary.kill()
        self._wait_for_promotion()

    def rejoin(self) -> None:
        """Bring the killed primary back, as the replica that Sentinel makes of it."""
        self.replica.restart()
        self._wait_in_step()

    def _order_fail_over(self) -> bool:
        try:
            self.sentinel.command("SENTINEL", "FAILOVER", SERVICE)
        except redis.exceptions.ResponseError as error:
            if "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def _wait_in_step(self) -> None:
        wait_until(lambda: replica_is_in_step(self.replica), within=30)
        self.replica.forget_connections()

    def _wait_for_promotion(self) -> None:
        expected = self.replica

        def promoted() -> bool:
            return self.announced_port() == expected.port and expected.info("replication")["role"] == "master"

        wait_until(promoted, within=30)
        self.primary, self.replica = self.replica, self.primary
        self.primary.forget_connections()

    def announced_port(self) -> int:
        """The port that Sentinel tells clients."""
        answer: Any = self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(answer[1])


def start_replicated(program: Path | None = None, /, **options: str | int) -> Replicated:
    """Primary, replica in step, and a Sentinel that has seen both."""
    primary = ValkeyProcess(program, **(REPLICATION_OPTIONS | options))
    replica = ValkeyProcess(program, **(REPLICATION_OPTIONS | options | {"replicaof": f"{HOST} {primary.port}"}))
    sentinel = SentinelProcess(
        f"sentinel monitor {SERVICE} {HOST} {primary.port} 1\n"
        # Longer than Sentinel's own ping period, which is in force until the timing is set below.
        f"sentinel down-after-milliseconds {SERVICE} 30000\n"
        f"sentinel failover-timeout {SERVICE} 3000\n",
        program,
    )
    replicated = Replicated(primary, replica, sentinel)
    try:
        primary.start()
        replica.start()
        wait_until(lambda: replica_is_in_step(replica))
        sentinel.start()
        for name, value in SENTINEL_TIMING.items():
            sentinel.command("SENTINEL", "DEBUG", name, value)
        sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER)
        wait_until(lambda: sentinel.info("sentinel")["master0"]["slaves"] == 1)
    except BaseException:
        replicated.close()
        raise
    return replicated
