"""`vela consume`: the messages of a topic as they come, acknowledged once they are printed."""

from __future__ import annotations

import json
import math
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.failures import CommandError
from gateway.cli.interrupting import Interruption, reaching, run_until_interrupted, state_printer
from gateway.cli.options import (
    DEFAULT_SERVICE_URL,
    AnyTopic,
    ServiceUrl,
    check_service_url,
    parse_any_topic,
    parse_interval,
    parse_subscription,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from protocol.client import ConnectionPool, ReceivedMessage, TopicConsumer


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class TooFewCame(CommandError):
    """Fewer messages came than were asked for, within the time for it."""


def consume(
    topic: AnyTopic,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", metavar="NAME", help="Whose position to go on from, and to move.")
    ],
    stream: Annotated[
        bool,
        typer.Option(
            "--stream/--queue",
            help="Get every segment that is assigned to this consumer, in order; or share all segments with others.",
        ),
    ] = False,
    start: Annotated[
        Start, typer.Option("--from", case_sensitive=False, help="Where a new subscription begins.")
    ] = Start.LATEST,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Who this consumer is.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="End when nothing has come for so long.")
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Acknowledge nothing, so that the messages come again to others.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message and line.")] = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Print messages as they come, until Ctrl-C: id, segment, key and value."""
    patience = math.inf if timeout is None else parse_interval(timeout, "--timeout")
    url, target = check_service_url(service_url), str(parse_any_topic(topic))
    chosen = parse_subscription(subscription)

    def opened(pool: ConnectionPool) -> AbstractAsyncContextManager[TopicConsumer]:
        from protocol import client

        opener = client.open_stream_consumer if stream else client.open_consumer
        return opener(pool, target, chosen, name=name, initial_position=start.value)

    async def run(interruption: Interruption) -> None:
        from protocol import client

        with reaching(url):
            async with (
                client.open_pool(url, on_state=state_printer(url)) as pool,
                opened(pool) as consumer,
            ):
                # What was printed before Ctrl-C is acknowledged when this is closed.
                with interruption.stoppable():
                    await _print_messages(consumer, count, patience, as_json, not no_ack)

    run_until_interrupted(run)


async def _print_messages(
    consumer: TopicConsumer, count: int | None, patience: float, as_json: bool, acknowledges: bool
) -> None:
    import trio

    from gateway.cli.messages import as_object, describe

    printed = 0
    while printed != count:
        message: ReceivedMessage | None = None
        with trio.move_on_after(patience):
            message = await consumer.receive()
        if message is None:
            if count is not None:
                raise TooFewCame(f"only {printed} of {count} messages came: nothing more within {patience:g} s.")
            return
        print(json.dumps(as_object(message), ensure_ascii=False) if as_json else describe(message))
        sys.stdout.flush()
        printed += 1
        if acknowledges:
            consumer.ack_soon(message)
