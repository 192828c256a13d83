"""The fold against a node: what a watcher was sent is what the fold says of the recording of the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from metadata.traces.directories import open_trace
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from spark.analysis.coalescing import Coalescing, Telling
from spark.analysis.frames import entry_bytes
from spark.analysis.plain_moves import plain_moves
from tests.faults.namespace_views import Update, viewing_namespaces
from tests.support.nodes import running_node, transitions_of
from tests.support.valkeys import ValkeyProcess
from tests.support.waiting import eventually

NAMESPACE = "public/default"
# Long against what reading and telling take on a busy machine: every change is far from where a window ends, so what
# is compared need not allow for time at all.
WINDOW_MS = 400


def topic(name: str) -> TopicName:
    return TopicName("topic", "public", "default", name)


@pytest.mark.slow
async def test_a_watcher_was_sent_what_the_fold_says_of_the_recording(valkey: ValkeyProcess, tmp_path: Path) -> None:
    directory = tmp_path / "trace"
    async with (
        running_node(valkey.url, coalesce=WINDOW_MS / 1_000, record=directory) as node,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(node)
        await changes.create(topic("seed"), 2)
        view = await viewer.watch(NAMESPACE)
        await eventually(lambda: view.kinds == ["snapshot"])

        async def told(diffs: int) -> None:
            """So many diffs have come."""
            await eventually(lambda: len(view.updates) == 1 + diffs)

        async def quiet() -> None:
            await trio.sleep(1.5 * WINDOW_MS / 1_000)

        await quiet()
        # The first is told at once, the next two together.
        await changes.create(topic("a"), 1)
        await told(1)
        await changes.create(topic("b"), 1)
        await changes.create(topic("c"), 1)
        await told(2)
        await quiet()
        # What came and went is not mentioned.
        await changes.delete(topic("a"))
        await told(3)
        await changes.create(topic("d"), 1)
        await changes.delete(topic("d"))
        await quiet()
        # Made anew, beside something else; a split is nothing to this watcher.
        await changes.create(topic("e"), 1)
        await told(4)
        await changes.delete(topic("b"))
        await changes.create(topic("b"), 1)
        await changes.split(topic("seed"), 0)
        await changes.delete(topic("c"))
        await told(5)
        # One window after the other, without quiet.
        await changes.create(topic("f"), 1)
        await told(6)
        await changes.delete(topic("f"))
        await changes.create(topic("ü" * 70), 1)
        await told(7)

    sent = [_sent(update) for update in view.updates[1:]]
    predicted = [_predicted(telling) for telling in _fold(directory)]
    assert [(removed, added) for removed, added, _ in sent] == [(removed, added) for removed, added, _ in predicted]
    assert [size for _, _, size in sent] == [size for _, _, size in predicted]


def _fold(directory: Path) -> list[Telling]:
    folding = Coalescing([WINDOW_MS], keep=True)
    for at, _, name, op, incarnation, _, _ in plain_moves(open_trace(directory))[NAMESPACE]:
        if op == "seed":
            folding.seed(name, incarnation)
        elif op != "change":
            size = entry_bytes(len(str(topic(name)).encode()))
            folding.change((at, name, incarnation if op == "create" else None, size))
    folding.end()
    # The watcher came after the seed.
    return [telling for telling in folding.windows[0].tellings if telling.added != ("seed",)]


def _sent(update: Update) -> tuple[set[str], set[str], int]:
    command = api.BaseCommand(type=api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, watchScalableTopicsUpdate=update)
    return set(update.diff.removed), set(update.diff.added), len(encode(command))


def _predicted(telling: Telling) -> tuple[set[str], set[str], int]:
    return {str(topic(name)) for name in telling.removed}, {str(topic(name)) for name in telling.added}, telling.bytes
