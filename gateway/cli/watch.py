"""`vela watch …`: what the server pushes to a client, as it arrives."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.failures import CommandError
from gateway.cli.options import (
    DEFAULT_SERVICE_URL,
    Properties,
    ServiceUrl,
    Topic,
    check_service_url,
    parse_namespace,
    parse_properties,
    parse_topic,
)

if TYPE_CHECKING:
    from protocol.client import WatchState

app = typer.Typer(no_args_is_help=True, help="Follow what the server pushes, live.")

# What Ctrl-C means to shells and scripts: 128 + SIGINT.
INTERRUPTED = 130

JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per push and line, for pipes.")]


class WatchEnded(CommandError):
    """The server ended the watch or is not there; the text says why."""


@app.command("topic")
def watch_topic(
    topic: Topic,
    as_json: JsonLines = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it is missing, as producers do.")
    ] = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Follow a topic's segment DAG: its state now, then every change, until Ctrl-C."""
    name = str(parse_topic(topic))
    url = check_service_url(service_url)
    _run_until_interrupted(lambda: _print_pushes(url, name, as_json, create))


@app.command("namespace")
def watch_namespace(
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="As tenant/namespace.", show_default=True)
    ] = "public/default",
    properties: Properties = None,
    as_json: JsonLines = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Follow the topics of a namespace: those there are, then what comes and goes, until Ctrl-C.

    With --property only topics that have all of them.
    """
    name = str(parse_namespace(namespace))
    given = parse_properties(properties)
    url = check_service_url(service_url)
    _run_until_interrupted(lambda: _print_events(url, name, given, as_json))


def _run_until_interrupted(follow: Callable[[], Awaitable[None]]) -> None:
    import trio

    interrupted = False

    async def stop_on_interrupt(scope: trio.CancelScope) -> None:
        # As a signal receiver and not as KeyboardInterrupt: that would end the watch in the middle of anything.
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                interrupted = True
                scope.cancel()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_interrupt, nursery.cancel_scope)
            # Ends by an error or by the user.
            await follow()

    trio.run(run)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


async def _print_pushes(service_url: str, topic: str, as_json: bool, create: bool) -> None:
    from gateway.cli import pushes
    from protocol import client
    from protocol.wire import pulsar_api_pb2 as api

    previous: api.ScalableTopicDAG | None = None
    with _reaching(service_url):
        async with client.watch_topic(
            service_url, topic, create_if_missing=create, on_state=_state_printer(service_url)
        ) as updates:
            async for push in updates:
                if push.HasField("error"):
                    raise WatchEnded(f"{topic}: {push.message or api.ServerError.Name(push.error)}")
                now = datetime.now(UTC)
                if as_json:
                    _print([json.dumps(pushes.layout_as_object(push, now))])
                else:
                    _print(pushes.describe_layout(push, previous, now))
                previous = push.dag


async def _print_events(service_url: str, namespace: str, properties: Mapping[str, str], as_json: bool) -> None:
    from gateway.cli import pushes
    from protocol import client

    known: set[str] | None = None
    with _reaching(service_url):
        async with client.watch_namespace(
            service_url, namespace, properties=properties, on_state=_state_printer(service_url)
        ) as events:
            async for event in events:
                now = datetime.now(UTC)
                if as_json:
                    _print([json.dumps(pushes.event_as_object(event, namespace, now))])
                elif isinstance(event, client.Snapshot):
                    _print(pushes.describe_snapshot(event, known, namespace, now))
                    known = set(event.topics)
                else:
                    assert known is not None, "the first event is a snapshot"
                    _print(pushes.describe_change(event, now))
                    known.difference_update(event.removed)
                    known.update(event.added)


@contextmanager
def _reaching(service_url: str) -> Iterator[None]:
    """A server that is not there, in a sentence that says what to do; one that goes later is waited for instead."""
    from protocol.client import ConnectionLost, RequestTimedOut

    try:
        yield
    except (ConnectionLost, RequestTimedOut):
        raise WatchEnded(
            f"no Vela answers at {service_url}: start one with `make serve` or pass --service-url"
        ) from None


def _state_printer(service_url: str) -> Callable[[WatchState], None]:
    """Tells a person about lost connections, apart from what is watched."""
    was_lost = False

    def report(state: WatchState) -> None:
        nonlocal was_lost
        if state == "reconnecting":
            was_lost = True
            print(f"vela: lost the connection to {service_url}, trying again", file=sys.stderr, flush=True)
        elif was_lost:
            print(f"vela: connected to {service_url} again", file=sys.stderr, flush=True)

    return report


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
