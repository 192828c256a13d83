"""`vela subscriptions …`: list, create, delete and move the subscriptions of a topic through the admin API."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import typer

from gateway.cli.options import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    Json,
    Subscription,
    Topic,
    admin_client,
    parse_subscription,
    parse_topic,
)
from gateway.cli.terminal import LATEST_MS, cell, moment, print_json, print_parts, shown, table

app = typer.Typer(no_args_is_help=True, help="List, create, move and delete the subscriptions of a topic.")

_AGO = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([smhdw])", re.ASCII)
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Kind(StrEnum):
    STREAM = "stream"
    QUEUE = "queue"


@app.command("list")
def list_subscriptions(topic: Topic, as_json: Json = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """List the subscriptions of a topic with their types."""
    from gateway.cli.answers import SubscriptionSummary, read, type_in_words

    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        content = client.list_subscriptions(name)
        found = read(client, content, dict[str, SubscriptionSummary], "list of subscriptions")
    if as_json:
        print_json(content)
    elif found:
        made = table("subscription", "type", "consumers", "created", right=("consumers",), whole=("type", "created"))
        for subscription, summary in found.items():
            made.add_row(
                cell(subscription),
                cell(type_in_words(summary.type)),
                str(summary.consumers),
                moment(summary.created_at_ms),
            )
        print_parts(made)


@app.command()
def create(
    topic: Topic,
    subscription: Subscription,
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--type",
            "-t",
            case_sensitive=False,
            help="stream: every segment goes to one consumer, in order; queue: all consumers share all segments. "
            "Without it the first consumer decides.",
        ),
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Create a subscription; one that is there with the same type, or with any if none is given, stays as it is."""
    name, chosen = parse_topic(topic), parse_subscription(subscription)
    with admin_client(admin_url) as client:
        client.create_subscription(name, chosen, kind.name if kind is not None else None)
    print(f"{name} has the {f'{kind} ' if kind is not None else ''}subscription {shown(chosen)} now.")


@app.command()
def delete(
    topic: Topic,
    subscription: Subscription,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a subscription with its position and its consumers, who end."""
    name, chosen = parse_topic(topic), parse_subscription(subscription)
    with admin_client(admin_url) as client:
        client.delete_subscription(name, chosen)
    print(f"Deleted subscription {shown(chosen)} of {name}.")


@app.command()
def seek(
    topic: Topic,
    subscription: Subscription,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="AGO", help="How long ago, like 30m, 1h or 5d; s, m, h, d and w are known."),
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option("--timestamp", min=0, max=LATEST_MS, metavar="MS", help="In milliseconds since 1970."),
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Let a subscription go on from a moment, in the past or not."""
    if (to is None) == (timestamp is None):
        raise typer.BadParameter("give either --to or --timestamp.", param_hint="--to, --timestamp")
    at_ms = timestamp if timestamp is not None else moment_ago(to or "", time.time_ns() // 1_000_000)
    name, chosen = parse_topic(topic), parse_subscription(subscription)
    with admin_client(admin_url) as client:
        client.seek(name, chosen, at_ms)
    print(f"Subscription {shown(chosen)} of {name} goes on from {moment(at_ms) or 'the beginning'}.")


@app.command("skip-all")
def skip_all(topic: Topic, subscription: Subscription, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Let a subscription skip everything that is there now."""
    name, chosen = parse_topic(topic), parse_subscription(subscription)
    with admin_client(admin_url) as client:
        client.skip_all(name, chosen)
    print(f"Subscription {shown(chosen)} of {name} has skipped everything.")


def moment_ago(text: str, now_ms: int) -> int:
    """The moment that lies so far back; there is none before 1970."""
    match = _AGO.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f'"{text}" is no time: give one like 30m, 1h or 5d.', param_hint="--to")
    return max(0, now_ms - int(Fraction(match[1]) * _UNITS_MS[match[2]]))
