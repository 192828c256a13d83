"""Whatever happened to clients, nodes and the store, in the end every segment has one owner."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from controller.transitions import TopicLimits, Transitions
from gateway.node import Node
from layout import records
from layout.errors import LayoutError
from metadata import keys, scripts
from metadata.errors import StoreError
from metadata.registrations import Registrations
from metadata.store import TopicStore, open_store
from protocol.wire import pulsar_api_pb2 as api
from tests.controller.leading_nodes import PATH, SETTINGS, TOPIC
from tests.faults.writers import change
from tests.support.consumers import ConsumerConnection, RegisteredConsumer, connect_consumers, is_shared
from tests.support.nodes import running_node
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually


class Churn:
    """Clients of two nodes that come, go, leave and come back while the nodes lose their store and their sessions."""

    def __init__(self, seed: int, valkey: ValkeyProcess, nodes: Sequence[Node], proxies: Sequence[FaultProxy]) -> None:
        self.chance = random.Random(seed)
        self.valkey = valkey
        self.nodes = nodes
        self.proxies = proxies
        self.holders: dict[str, tuple[ConsumerConnection, RegisteredConsumer]] = {}
        self.connections: list[ConsumerConnection] = []

    async def step(self, nursery: trio.Nursery, store: TopicStore, changes: Transitions) -> None:
        names = [f"c{number}" for number in range(6)]
        match self.chance.randrange(15):
            case 0 | 1 | 2:
                await self.come(nursery, self.chance.choice(names))
            case 3 if self.holders:
                # Its connection breaks; it may come back or not.
                name = self.chance.choice(sorted(self.holders))
                self.holders.pop(name)[0].disconnect()
                if self.chance.random() < 0.6:
                    await self.come(nursery, name)
            case 4 if self.holders:
                connection, consumer = self.holders.pop(self.chance.choice(sorted(self.holders)))
                await connection.unsubscribe(consumer.consumer_id)
            case 5 | 6:
                try:
                    await change(store, changes, TOPIC, self.chance)
                except (StoreError, LayoutError):
                    pass
            case 7:
                self.chance.choice(self.proxies).cut()
            case 8:
                proxy = self.chance.choice(self.proxies)
                proxy.refuse()
                proxy.cut()
            case 9:
                self.calm()
            case 10:
                self.valkey.client().delete(keys.node_key(self.chance.choice(self.nodes).session.record.session))
            case 11:
                self.valkey.client().hdel(keys.record_key(PATH), "leader")
            case 12:
                self.chance.choice(self.proxies).swallow_pushes()
            case 13:
                self.chance.choice(self.proxies).stall()
            case 14:
                sha = self.chance.choice(scripts.ALL).sha.encode()
                self.chance.choice(self.proxies).cut_before_reply(lambda request: sha in request, times=2)

    async def come(self, nursery: trio.Nursery, name: str) -> None:
        """A client has one connection: it gives the old one up before it makes another."""
        if name in self.holders:
            self.holders.pop(name)[0].disconnect()
        connection = await connect_consumers(nursery, self.chance.choice(self.nodes).pulsar_url)
        self.connections.append(connection)
        self.holders[name] = connection, await connection.subscribe(TOPIC, "s", name)

    def calm(self) -> None:
        for proxy in self.proxies:
            proxy.accept()
            proxy.resume()
            proxy.deliver_pushes()
            proxy.cut_before_reply(lambda request: False, times=0)

    async def try_again(self, nursery: trio.Nursery) -> None:
        """Who is refused because of an earlier registration of its own that came late asks again, as clients do."""
        for name, (_, consumer) in list(self.holders.items()):
            if consumer.answered and consumer.error is not None:
                assert consumer.error == api.ConsumerBusy, consumer
                await self.come(nursery, name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happened_every_segment_ends_with_one_of_the_consumers_that_are_there(
    valkey: ValkeyProcess, seed: int
) -> None:
    settings = SETTINGS | {"session_lease": 0.8, "consumer_grace": 0.5, "prune_interval": 1.0, "probe_interval": 0.3}
    async with (
        FaultProxy.open(*valkey.address) as near,
        FaultProxy.open(*valkey.address) as far,
        running_node(near.url, **settings) as first,
        running_node(far.url, **settings) as second,
        open_store(valkey.url) as store,
        trio.open_nursery() as nursery,
    ):
        changes = Transitions(store, TopicLimits())
        await changes.create(TOPIC, 4)
        churn = Churn(seed, valkey, (first, second), (near, far))
        for _ in range(60):
            await churn.step(nursery, store, changes)
            await trio.sleep(churn.chance.uniform(0, 0.1))
        churn.calm()
        if not churn.holders:
            await churn.come(nursery, "last")

        async def at_rest() -> bool:
            await churn.try_again(nursery)
            stored = await store.get(TOPIC)
            assert stored is not None
            active = {segment.segment_id for segment in records.decode(stored.value).layout.active}
            consumers = [consumer for _, consumer in churn.holders.values()]
            assert is_shared(consumers, active), (active, consumers)
            return True

        await eventually(at_rest, within=30)
        state = await Registrations(store).state(store.commands, TOPIC)
        assert state is not None
        assert set(state.subscriptions["s"].consumers) >= set(churn.holders)

        async def only_they_are_registered() -> bool:
            found = await Registrations(store).state(store.commands, TOPIC)
            return found is not None and set(found.subscriptions["s"].consumers) == set(churn.holders)

        await eventually(only_they_are_registered, within=30)
        assert [complaint for connection in churn.connections for complaint in connection.complaints] == []
        await eventually(lambda: [first.leaders.leads(TOPIC), second.leaders.leads(TOPIC)].count(True) == 1, within=30)
        for connection in churn.connections:
            connection.disconnect()
