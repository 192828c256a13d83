"""`vela watch …`: what the server pushes to a client, as it arrives."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.cli.failures import CommandError
from gateway.cli.interrupting import reaching, run_until_interrupted, state_printer
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

app = typer.Typer(no_args_is_help=True, help="Follow what the server pushes, live.")

JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per push and line, for pipes.")]


class WatchEnded(CommandError):
    """The server ended the watch; the text says why."""


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
    run_until_interrupted(lambda _: _print_pushes(url, name, as_json, create))


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
    run_until_interrupted(lambda _: _print_events(url, name, given, as_json))


async def _print_pushes(service_url: str, topic: str, as_json: bool, create: bool) -> None:
    from gateway.cli import pushes
    from protocol import client
    from protocol.wire import pulsar_api_pb2 as api

    previous: api.ScalableTopicDAG | None = None
    with reaching(service_url):
        async with client.watch_topic(
            service_url, topic, create_if_missing=create, on_state=state_printer(service_url)
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
    with reaching(service_url):
        async with client.watch_namespace(
            service_url, namespace, properties=properties, on_state=state_printer(service_url)
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


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
