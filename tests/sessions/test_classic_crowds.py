"""Thousands of questions of one connection: those that one listing answers do not hold up everybody else."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast

import pytest
import trio
import trio.testing

from protocol.names import NamespaceName
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.classic import ClassicService
from sessions.outbox import Outbox

QUESTIONS: Final = 300


class TurnCountingOutbox:
    """Never congested; notes in which turn of the loop each answer was made."""

    def __init__(self) -> None:
        self.turn = 0
        self.answered_in: list[int] = []

    def reply(self, data: bytes) -> None:
        self.answered_in.append(self.turn)

    async def wait_drained(self) -> None:
        pass


async def test_of_the_lists_that_wait_for_one_listing_one_is_made_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = trio.Event()

    async def names(service: ClassicService, namespace: NamespaceName) -> list[str]:
        await listed.wait()
        return ["a", "b"]

    monkeypatch.setattr(ClassicService, "names", names)
    outbox = TurnCountingOutbox()
    async with trio.open_nursery() as nursery:
        nothing = cast(Any, None)
        service = ClassicService(
            nursery=nursery, store=nothing, topics=nothing, lists=nothing, auto_create=True, frame_limit=1_000_000
        )
        conversation = service.converse(cast(Outbox, outbox), "")
        for number in range(QUESTIONS):
            command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
            command.getTopicsOfNamespace.request_id = number
            command.getTopicsOfNamespace.namespace = "public/default"
            conversation.receive(command)
        await trio.testing.wait_all_tasks_blocked()
        listed.set()
        while len(outbox.answered_in) < QUESTIONS:
            outbox.turn += 1
            await trio.lowlevel.checkpoint()
    # Within a turn, tasks run in any order: before and after the one that counts.
    assert max(Counter(outbox.answered_in).values()) <= 2
