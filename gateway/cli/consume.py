"""`vela consume`: the messages of a topic, or of the topics of a namespace, acknowledged once they are printed."""

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
    TOPIC_OF_ANY_KIND,
    ServiceUrl,
    check_service_url,
    parse_any_topic,
    parse_interval,
    parse_namespace,
    parse_properties,
    parse_subscription,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from typing import Protocol

    from protocol.client import ConnectionPool, ReceivedMessage, TopicEvent

    class AnyConsumer(Protocol):
        """Of a topic or of a namespace."""

        async def receive(self) -> ReceivedMessage: ...

        def ack_soon(self, message: ReceivedMessage) -> object: ...


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class TooFewCame(CommandError):
    """Fewer messages came than were asked for, within the time for it."""


def consume(
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", metavar="NAME", help="Whose position to go on from, and to move.")
    ],
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help=TOPIC_OF_ANY_KIND)] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="TENANT/NAMESPACE", help="All its scalable topics, instead of one."),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="KEY=VALUE",
            help="With --namespace: only topics with this property; may be given several times.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream/--queue",
            help="Get every segment that is assigned to this consumer, in order; or share all segments with others.",
        ),
    ] = False,
    start: Annotated[
        Start,
        typer.Option(
            "--from",
            case_sensitive=False,
            help="Where a new subscription begins; topics that join --namespace later are consumed whole.",
        ),
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
    """Print messages as they come, until Ctrl-C: id, segment, key and value.

    Of one topic, or of all topics of a namespace that have certain properties, each line then with the topic first.
    """
    if (topic is None) == (namespace is None):
        raise typer.BadParameter("give either a topic or --namespace.", param_hint="TOPIC, --namespace")
    if filters and namespace is None:
        raise typer.BadParameter("it goes with --namespace: one topic is not filtered.", param_hint="--filter")
    patience = math.inf if timeout is None else parse_interval(timeout, "--timeout")
    url, chosen = check_service_url(service_url), parse_subscription(subscription)
    target = str(parse_any_topic(topic)) if topic is not None else str(parse_namespace(namespace or ""))
    properties = parse_properties(filters, "--filter")

    def opened(pool: ConnectionPool) -> AbstractAsyncContextManager[AnyConsumer]:
        from protocol import client

        if topic is not None:
            open_topic = client.open_stream_consumer if stream else client.open_consumer
            return open_topic(pool, target, chosen, name=name, initial_position=start.value)
        open_all = client.open_namespace_stream_consumer if stream else client.open_namespace_consumer
        return open_all(
            pool,
            target,
            chosen,
            properties=properties,
            name=name,
            initial_position=start.value,
            on_topic=_complain,
        )

    async def run(interruption: Interruption) -> None:
        from protocol import client

        with reaching(url):
            async with (
                client.open_pool(url, on_state=state_printer(url)) as pool,
                opened(pool) as consumer,
            ):
                # What was printed before Ctrl-C is acknowledged when this is closed.
                with interruption.stoppable():
                    await _print_messages(
                        consumer, count, patience, as_json, acknowledges=not no_ack, names_topic=namespace is not None
                    )

    run_until_interrupted(run)


def _complain(event: TopicEvent) -> None:
    """About a topic that cannot be consumed; that topics join and leave shows in what is printed."""
    from gateway.cli.graph_words import printable
    from protocol.client import TopicFailed

    if isinstance(event, TopicFailed):
        print(printable(f"{event.topic} cannot be consumed and is tried again: {event.reason}"), file=sys.stderr)


async def _print_messages(
    consumer: AnyConsumer,
    count: int | None,
    patience: float,
    as_json: bool,
    *,
    acknowledges: bool,
    names_topic: bool,
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
        if as_json:
            print(json.dumps(as_object(message, names_topic=names_topic), ensure_ascii=False))
        else:
            print(describe(message, names_topic=names_topic))
        sys.stdout.flush()
        printed += 1
        if acknowledges:
            consumer.ack_soon(message)
