"""Which server is the primary of which hash slot, for a single server, behind Sentinel, or in a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterable

import trio
from redis import RedisError
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from metadata.errors import StoreDenied, StoreUnavailable
from metadata.keys import BUCKET_SLOTS
from metadata.urls import Endpoint, Kind, StoreUrl

SLOTS = 16_384
# Many callers notice a fail-over in the same moment: one look at the servers serves them all.
_MIN_INTERVAL = 0.05


class Directory:
    """The current map of primaries. `refresh` asks the servers again; the map is replaced, never edited."""

    def __init__(self, url: StoreUrl, *, connect_timeout: float) -> None:
        self.url = url
        self.generation = 0
        self._connect_timeout = connect_timeout
        self._owners: list[Endpoint | None] = [None] * SLOTS
        self._changed = trio.Event()
        self._refreshing: trio.Event | None = None
        self._refreshed_at = float("-inf")
        if url.kind is Kind.SINGLE:
            self._replace([url.endpoints[0]] * SLOTS)

    def owner(self, slot: int) -> Endpoint | None:
        return self._owners[slot]

    def primaries(self) -> frozenset[Endpoint]:
        return frozenset(owner for owner in self._owners if owner is not None)

    def buckets_of(self, endpoint: Endpoint) -> frozenset[int]:
        return frozenset(b for b, slot in enumerate(BUCKET_SLOTS) if self._owners[slot] == endpoint)

    def moved(self, slot: int, endpoint: Endpoint) -> None:
        """A server said that this slot lives elsewhere now."""
        if self._owners[slot] != endpoint:
            owners = list(self._owners)
            owners[slot] = endpoint
            self._replace(owners)

    async def changed(self) -> None:
        """Return when the map is another one than at the call."""
        await self._changed.wait()

    async def refresh(self) -> None:
        """Look at the servers again; on failure the old map stays and StoreUnavailable is raised."""
        if self.url.kind is Kind.SINGLE:
            return
        if self._refreshing is not None:
            await self._refreshing.wait()
            return
        if trio.current_time() - self._refreshed_at < _MIN_INTERVAL:
            return
        self._refreshing = trio.Event()
        try:
            look = self._ask_sentinels if self.url.kind is Kind.SENTINEL else self._ask_cluster
            candidates = list(self.primaries()) if self.url.kind is Kind.CLUSTER else []
            random.shuffle(candidates)
            owners = await trio.to_thread.run_sync(look, candidates, abandon_on_cancel=True)
            if owners != self._owners:
                self._replace(owners)
        finally:
            self._refreshed_at = trio.current_time()
            self._refreshing.set()
            self._refreshing = None

    def _replace(self, owners: list[Endpoint] | list[Endpoint | None]) -> None:
        self._owners = list(owners)
        self.generation += 1
        self._changed.set()
        self._changed = trio.Event()

    def _ask_sentinels(self, _: Iterable[Endpoint]) -> list[Endpoint | None]:
        # Credentials are the store's; Sentinels are asked without, as redis-py and others do by default.
        sentinel = Sentinel(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
            [(endpoint.host, endpoint.port) for endpoint in self.url.endpoints],
            socket_timeout=self._connect_timeout,
            socket_connect_timeout=self._connect_timeout,
            sentinel_kwargs={
                "socket_timeout": self._connect_timeout,
                "socket_connect_timeout": self._connect_timeout,
                "retry": Retry(NoBackoff(), 0),
                "ssl": self.url.tls,
            },
        )
        try:
            host, port = sentinel.discover_master(self.url.service)  # type: ignore[no-untyped-call] # as above
        except MasterNotFoundError as error:
            raise StoreUnavailable(f"no Sentinel names a primary for {self.url.service!r}: {error}") from None
        finally:
            for client in sentinel.sentinels:
                client.close()
        return [Endpoint(host, int(port))] * SLOTS

    def _ask_cluster(self, known: Iterable[Endpoint]) -> list[Endpoint | None]:
        reason = "no node answered"
        for endpoint in (*known, *self.url.endpoints):
            connection = self.url.connection(endpoint, connect_timeout=self._connect_timeout)
            try:
                connection.connect()
                connection.send_command("CLUSTER", "SLOTS")
                return _owners_of(connection.read_response(), endpoint)
            except (AuthenticationError, NoPermissionError) as error:
                raise StoreDenied(f"{endpoint} refuses the credentials of the store URL: {error}") from None
            except (RedisError, OSError) as error:
                reason = f"{endpoint}: {error}"
            finally:
                connection.disconnect()
        raise StoreUnavailable(f"cannot read the cluster's slots: {reason}")


def _owners_of(reply: object, asked: Endpoint) -> list[Endpoint | None]:
    """The owners of all slots from a CLUSTER SLOTS reply; an unnamed host means the one that was asked."""
    owners: list[Endpoint | None] = [None] * SLOTS
    assert isinstance(reply, list)
    for start, end, primary, *_ in reply:
        host = primary[0].decode() if isinstance(primary[0], bytes) else (primary[0] or "")
        endpoint = Endpoint(host if host and host != "?" else asked.host, int(primary[1]))
        owners[start : end + 1] = [endpoint] * (end + 1 - start)
    return owners
