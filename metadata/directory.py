"""Which server is the primary of which hash slot, for a single server, behind Sentinel, or in a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import groupby

import trio
from redis import RedisError
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.sentinel import Sentinel

from metadata.errors import StoreDenied, StoreUnavailable
from metadata.keys import BUCKET_SLOTS
from metadata.urls import Endpoint, Kind, StoreUrl, named_by_server

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
        self._silent: set[Endpoint] = set()  # who gave no answer when last asked
        if url.kind is Kind.SINGLE:
            self._replace([url.endpoints[0]] * SLOTS)

    def owner(self, slot: int) -> Endpoint | None:
        return self._owners[slot]

    def primaries(self) -> frozenset[Endpoint]:
        # Neighbours mostly have the same owner: hashing each of thousands would take milliseconds.
        return frozenset(owner for owner, _ in groupby(self._owners) if owner is not None)

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
        """Look at the servers again; on failure the old map stays and a StoreError is raised."""
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
            owners = await trio.to_thread.run_sync(look, self.primaries(), abandon_on_cancel=True)
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
        reason = "none was asked"
        for endpoint in self._in_order(self.url.endpoints):
            # Credentials are the store's; Sentinels are asked without, as redis-py does by default.
            options = self.url.client_options(self._connect_timeout) | ({"ssl": True} if self.url.tls else {})
            sentinel = Sentinel(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
                [(endpoint.host, endpoint.port)], sentinel_kwargs=options
            )
            try:
                host, port = sentinel.discover_master(self.url.service)  # type: ignore[no-untyped-call] # as above
            except (RedisError, OSError, ValueError) as error:
                # redis-py puts the whole client into its text; what the Sentinel said stands at its end.
                reason = f"{endpoint}: {str(error).rpartition(' - ')[2]}"
                self._silent.add(endpoint)
                continue
            finally:
                for client in sentinel.sentinels:
                    client.close()
            self._silent.discard(endpoint)
            return [Endpoint(host, int(port))] * SLOTS
        raise StoreUnavailable(f"no Sentinel names a primary for {self.url.service!r} ({reason})")

    def _ask_cluster(self, known: Iterable[Endpoint]) -> list[Endpoint | None]:
        """The map of the node that knows most. One that was reset knows nothing, and must not blank ours."""
        reason = "none was asked"
        best: list[Endpoint | None] = []
        wanted = SLOTS - self._owners.count(None)
        for endpoint in self._in_order({*known, *self.url.endpoints}):
            try:
                owners = self._slots_at(endpoint)
            except (AuthenticationError, NoPermissionError) as error:
                raise StoreDenied(f"{endpoint} refuses the credentials of the store URL: {error}") from None
            except (RedisError, OSError, ValueError) as error:
                reason = f"{endpoint}: {error}"
                self._silent.add(endpoint)
                continue
            self._silent.discard(endpoint)
            covered = SLOTS - owners.count(None)
            if covered and covered >= wanted:
                return owners
            if covered > (SLOTS - best.count(None) if best else 0):
                best = owners
            reason = f"{endpoint} knows the owners of {covered} slots only"
        if best:
            return best
        raise StoreUnavailable(f"cannot read the cluster's slots ({reason})")

    def _in_order(self, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        """Any order, but who was silent last: a dead server costs its time-out once, not at every look."""
        return sorted(endpoints, key=lambda endpoint: (endpoint in self._silent, random.random()))

    def _slots_at(self, endpoint: Endpoint) -> list[Endpoint | None]:
        connection = self.url.connection(endpoint, connect_timeout=self._connect_timeout)
        try:
            connection.connect()
            connection.send_command("CLUSTER", "SLOTS")
            return _owners_of(connection.read_response(), endpoint)
        finally:
            connection.disconnect()


def _owners_of(reply: object, asked: Endpoint) -> list[Endpoint | None]:
    """The owners of all slots from a CLUSTER SLOTS reply."""
    owners: list[Endpoint | None] = [None] * SLOTS
    assert isinstance(reply, list)
    for start, end, primary, *_ in reply:
        host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0] or ""
        endpoint = named_by_server(host, int(primary[1]), asked)
        owners[start : end + 1] = [endpoint] * (end + 1 - start)
    return owners
