"""`vela watch …`: what the server pushes to a client, as it arrives."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.failures import CommandError, alone
from gateway.cli.options import DEFAULT_SERVICE_URL, ServiceUrl, Topic, check_service_url, parse_topic

if TYPE_CHECKING:
    from protocol.wire import pulsar_api_pb2 as api

app = typer.Typer(no_args_is_help=True, help="Follow what the server pushes, live.")

# What Ctrl-C means to shells and scripts: 128 + SIGINT.
INTERRUPTED = 130
# A terminal shows this many segments of a push; the rest is counted.
_SHOWN_SEGMENTS = 16


class WatchEnded(CommandError):
    """The server ended the watch or the connection; the text says why."""


@app.command("topic")
def watch_topic(
    topic: Topic,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per push and line, for pipes.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it is missing, as producers do.")
    ] = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Follow a topic's segment DAG: its state now, then every change, until Ctrl-C."""
    import trio

    name = str(parse_topic(topic))
    if trio.run(_follow, check_service_url(service_url), name, as_json, create):
        raise typer.Exit(INTERRUPTED)


async def _follow(service_url: str, topic: str, as_json: bool, create: bool) -> bool:
    """True when the user stopped it."""
    import trio

    interrupted = False

    async def stop_on_interrupt(scope: trio.CancelScope) -> None:
        # As a signal receiver and not as KeyboardInterrupt: that would end the watch in the middle of anything.
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                interrupted = True
                scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_interrupt, nursery.cancel_scope)
        # Ends by an error, even if only that the server went away, or by the user.
        await _print_pushes(service_url, topic, as_json, create)
    return interrupted


async def _print_pushes(service_url: str, topic: str, as_json: bool, create: bool) -> None:
    import trio

    from protocol import client
    from protocol.wire import pulsar_api_pb2 as api

    previous: api.ScalableTopicDAG | None = None
    try:
        async with client.watch_topic(service_url, topic, create_if_missing=create) as pushes:
            async for push in pushes:
                if push.HasField("error"):
                    raise WatchEnded(f"{topic}: {push.message or api.ServerError.Name(push.error)}")
                now = datetime.now(UTC)
                lines = [json.dumps(as_object(push, now))] if as_json else describe(push, previous, now)
                for line in lines:
                    print(line)
                sys.stdout.flush()
                previous = push.dag
    except Exception as caught:
        error = alone(caught)
        # A broken pipe is our own output: what trio says of a socket is BrokenResourceError.
        if isinstance(error, BrokenPipeError) or not isinstance(error, OSError | trio.BrokenResourceError):
            raise
        if previous is None:
            raise WatchEnded(
                f"no Vela answers at {service_url}: start one with `make serve` or pass --service-url"
            ) from None
    raise WatchEnded(f"{service_url} closed the connection; run the command again to go on watching.")


def describe(
    push: api.CommandScalableTopicUpdate, previous: api.ScalableTopicDAG | None, now: datetime
) -> Iterator[str]:
    """A push for people: one line with what happened, then the active segments with their owners."""
    active, sealed = _by_state(push.dag)
    moment = now.astimezone().strftime("%H:%M:%S.%f")[:-3]
    news = "; ".join(_changes(previous, push.dag)) if previous is not None else push.resolved_topic_name
    yield f"{moment}  epoch {push.dag.epoch}  {len(active)} active, {len(sealed)} sealed  {news}".rstrip()
    brokers = {broker.segment_id: broker.broker_url for broker in push.dag.segment_brokers}
    shown = active[:_SHOWN_SEGMENTS]
    for segment in shown:
        text = f"  {segment.segment_id:>6}  {segment.hash_start:04x}-{segment.hash_end:04x}"
        yield f"{text}  {brokers.get(segment.segment_id, 'no owner yet')}"
    if len(active) > len(shown):
        yield f"  … and {len(active) - len(shown)} more"


def as_object(push: api.CommandScalableTopicUpdate, now: datetime) -> Mapping[str, Any]:
    """A push for programs, with the field names of the admin API."""
    from protocol.wire import pulsar_api_pb2 as api

    brokers = {broker.segment_id: broker.broker_url for broker in push.dag.segment_brokers}
    return {
        "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "topic": push.resolved_topic_name,
        "epoch": push.dag.epoch,
        "controllerBrokerUrl": push.dag.controller_broker_url or None,
        "segments": [
            {
                "segmentId": segment.segment_id,
                "hashRange": {"start": segment.hash_start, "end": segment.hash_end},
                "state": api.SegmentState.Name(segment.state),
                "parentIds": list(segment.parent_ids),
                "childIds": list(segment.child_ids),
                "brokerUrl": brokers.get(segment.segment_id),
            }
            for segment in push.dag.segments
        ],
    }


def _by_state(dag: api.ScalableTopicDAG) -> tuple[list[api.SegmentInfoProto], list[api.SegmentInfoProto]]:
    from protocol.wire import pulsar_api_pb2 as api

    active = [segment for segment in dag.segments if segment.state == api.ACTIVE]
    sealed = [segment for segment in dag.segments if segment.state != api.ACTIVE]
    return sorted(active, key=lambda segment: segment.hash_start), sealed


def _changes(before: api.ScalableTopicDAG, after: api.ScalableTopicDAG) -> Iterator[str]:
    known = {segment.segment_id for segment in before.segments}
    came = [segment for segment in after.segments if segment.segment_id not in known]
    gone = known - {segment.segment_id for segment in after.segments}
    families: dict[tuple[int, ...], list[int]] = {}
    for segment in came:
        families.setdefault(tuple(segment.parent_ids), []).append(segment.segment_id)
    for parents, children in families.items():
        if not parents:
            yield f"new {_listed(children)}"
        else:
            yield f"{'merged' if len(parents) > 1 else 'split'} {_listed(parents)} into {_listed(children)}"
    if gone:
        yield f"gone {_listed(sorted(gone))}"
    if not came and not gone:
        yield "owners changed"


def _listed(ids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ids))
