"""Where a log ends, as readers ask it to learn whether anything is left for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.node import Node
from protocol.client import requests
from tests.segments.test_sending import TOPIC, connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, stored
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def last(consumer: WireConsumer) -> tuple[int, int]:
    answer = (await consumer.ask(requests.last_message_id(9, CONSUMER_ID))).getLastMessageIdResponse
    entry = answer.last_message_id.entryId
    return answer.last_message_id.ledgerId, entry - 2**64 if entry >= 2**63 else entry


async def test_log_that_holds_nothing_ends_before_its_first_message(node: Node) -> None:
    """Also one that held something: who waits for the last message of that waits for ever."""
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe()
    [owned] = node.data.hosting.logs
    assert await last(consumer) == (owned.ledger, -1)
    await stored(node, 3)
    assert await last(consumer) == (owned.ledger, 2)
    await owned.trim(2)
    assert await last(consumer) == (owned.ledger, 2)
    await owned.trim(3)
    assert await last(consumer) == (owned.ledger, -1)
