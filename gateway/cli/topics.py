"""`vela topics …`: create, inspect, label, split, merge, draw, watch over and delete topics through the admin API."""

from __future__ import annotations

import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import classic
from gateway.cli.failures import CommandError
from gateway.cli.options import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    AnyTopic,
    Json,
    Properties,
    Topic,
    admin_client,
    parse_any_topic,
    parse_namespace,
    parse_properties,
    parse_topic,
)
from gateway.cli.retention import Megabytes, Minutes, show_or_set
from gateway.cli.terminal import cell, moment, print_json, print_parts, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gateway.admin_client import AdminClient
    from gateway.cli.answers import TopicStats
    from layout.layouts import Layout
    from layout.records import TopicRecord
    from layout.segments import Segment
    from protocol.names import TopicName

app = typer.Typer(no_args_is_help=True, help="Create, inspect, split, merge and delete topics.")

_RING = 0x10000


@app.command()
def create(
    topic: AnyTopic,
    segments: Annotated[
        int | None, typer.Option("--segments", "-s", min=1, metavar="N", help="How many segments to start with: 1.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, metavar="N", help="Of a classic topic: it is partitioned, into so many."),
    ] = None,
    properties: Properties = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Create a topic, scalable unless it is named persistent://."""
    any_name = parse_any_topic(topic)
    given = parse_properties(properties)
    if classic.is_classic(any_name):
        if segments is not None:
            raise typer.BadParameter("a classic topic has partitions instead.", param_hint="--segments")
        classic.create(any_name, partitions, given, admin_url)
        return
    if partitions is not None:
        raise typer.BadParameter("a scalable topic has segments instead.", param_hint="--partitions")
    name, segments = any_name.canonical, segments or 1
    with admin_client(admin_url) as client:
        client.create_topic(name, segments, given)
    print(f"Created {name} with {segments} segment{'s' if segments > 1 else ''}.")


@app.command("list")
def list_topics(
    namespace: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE]",
            help="As tenant/namespace; as [bold]persistent://tenant/namespace[/bold] for its classic topics.",
            show_default=True,
        ),
    ] = "public/default",
    properties: Properties = None,
    as_json: Json = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """List the topics of a namespace, one per line; with --property only those that have all of them."""
    given = parse_properties(properties)
    if (classic_namespace := classic.namespace_of(namespace)) is not None:
        if given:
            raise typer.BadParameter("classic topics cannot be chosen by properties.", param_hint="--property")
        with admin_client(admin_url) as client:
            names = client.list_classic(classic_namespace)
    else:
        name = parse_namespace(namespace)
        with admin_client(admin_url) as client:
            names = client.list_topics(name, given)
    if as_json:
        print_json(names)
    else:
        for found in names:
            print(found)


@app.command()
def get(topic: AnyTopic, as_json: Json = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Show a topic's layout and properties; the partitions of a classic one."""
    any_name = parse_any_topic(topic)
    if classic.is_classic(any_name):
        classic.show(any_name, as_json=as_json, admin_url=admin_url)
        return
    name = any_name.canonical
    with admin_client(admin_url) as client:
        content = client.get_topic(name)
    record = _decode(content)
    if as_json:
        print_json(content)
    else:
        print_parts(_overview(name, record), _segment_table(record.layout))


@app.command("set-properties")
def set_properties(
    topic: Topic,
    properties: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", show_default=False, help="All that the topic shall have."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Leave the topic without properties.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Replace all properties of a topic; those not named are gone."""
    if clear == bool(properties):
        raise typer.BadParameter("give either KEY=VALUE pairs or --clear.", param_hint="KEY=VALUE")
    name = parse_topic(topic)
    try:
        given = parse_properties(properties)
    except typer.BadParameter as error:
        error.param_hint = "KEY=VALUE"
        raise
    with admin_client(admin_url) as client:
        client.set_properties(name, given)
    print(f"{name} has {', '.join(f'{key}={value}' for key, value in given.items()) or 'no properties'} now.")


@app.command()
def split(
    topic: Topic,
    segment: Annotated[int, typer.Argument(metavar="SEGMENT", min=0, help="The id of an active segment.")],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Seal a segment and let two new ones take over its halves."""
    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        client.split(name, segment)
        children = _children(client, name, segment)
    print(f"Split segment {segment} of {name}{children}.")


@app.command()
def merge(
    topic: Topic,
    first: Annotated[int, typer.Argument(metavar="A", min=0, help="The id of an active segment.")],
    second: Annotated[int, typer.Argument(metavar="B", min=0, help="The id of its neighbour.")],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Seal two neighbouring segments and let one new one take over both ranges."""
    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        client.merge(name, first, second)
        children = _children(client, name, first)
    print(f"Merged segments {first} and {second} of {name}{children}.")


@app.command()
def migrate(
    topic: AnyTopic,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Although clients are connected that know no scalable topics.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Make a classic topic scalable: what is in it stays, and new segments take what comes."""
    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        client.migrate(name, force=force)
    print(f"Migrated {name}.")


@app.command()
def retention(
    topic: Topic,
    minutes: Minutes = None,
    megabytes: Megabytes = None,
    clear: Annotated[bool, typer.Option("--clear", help="Leave it to the namespace.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Show or set how long a topic keeps its sealed segments."""
    show_or_set(parse_topic(topic), minutes, megabytes, clear=clear, otherwise="its namespace", admin_url=admin_url)


@app.command()
def stats(topic: Topic, as_json: Json = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Show who leads a topic, who owns its segments, its subscriptions, and what goes through."""
    name = parse_topic(topic)
    content, found = _stats(name, admin_url)
    if as_json:
        print_json(content)
        return
    from gateway.cli import topic_stats as shown

    print_parts(
        shown.overview(str(name), found), "", shown.segment_table(found.layout), "", shown.subscription_table(found)
    )


@app.command()
def consumers(
    topic: Topic,
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", metavar="NAME", help="Only the consumers of this one.")
    ] = None,
    as_json: Json = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Show which consumer has which segments, and the segments that nobody has."""
    name = parse_topic(topic)
    content, found = _stats(name, admin_url)
    if subscription is not None and subscription not in found.subscriptions:
        raise CommandError(f"{name} has no subscription {subscription}: see `vela subscriptions list`.")
    from gateway.cli import topic_stats as shown

    wanted = found.subscriptions if subscription is None else {subscription: found.subscriptions[subscription]}
    if as_json:
        print_json(shown.consumers_as_object(content, found, wanted))
    elif wanted:
        print_parts(shown.consumer_table(found, wanted))
    else:
        print(f"{name} has no subscriptions.")


@app.command()
def partitions(
    topic: AnyTopic,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", min=1, show_default=False, help="How many it shall have, not fewer than now."),
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Show how many partitions a classic topic has, or give it more."""
    classic.show_or_set_partitions(classic.required(parse_any_topic(topic)), number, admin_url)


@app.command()
def delete(
    topic: AnyTopic,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also while clients are connected.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a topic with all its segments or partitions, and its subscriptions."""
    any_name = parse_any_topic(topic)
    if classic.is_classic(any_name):
        classic.delete(any_name, force=force, admin_url=admin_url)
        return
    name = any_name.canonical
    with admin_client(admin_url) as client:
        client.delete_topic(name, force=force)
    print(f"Deleted {name}.")


@app.command()
def graph(
    topic: Topic,
    dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz DOT.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Print an SVG picture.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid diagram.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Draw how a topic's segments came from one another, in the terminal or as a picture."""
    if dot + svg + mermaid > 1:
        raise typer.BadParameter("give only one of them.", param_hint="--dot, --svg, --mermaid")
    from gateway.cli import graph as drawings

    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        layout = _decode(client.get_topic(name)).layout
    if dot or svg or mermaid:
        draw = drawings.to_dot if dot else drawings.to_svg if svg else drawings.to_mermaid
        drawing = draw(layout, str(name))
    else:
        width = get_terminal_size(fallback=(100, 24)).columns
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        drawing = drawings.draw_text(layout, str(name), width=width, color=color)
    print(drawing, end="" if drawing.endswith("\n") else "\n")


def _decode(content: bytes) -> TopicRecord:
    from layout.records import decode

    return decode(content)


def _stats(topic: TopicName, admin_url: str) -> tuple[bytes, TopicStats]:
    """The statistics as they came and as a value."""
    from gateway.cli.answers import TopicStats, read

    with admin_client(admin_url) as client:
        content = client.topic_stats(topic)
        return content, read(client, content, TopicStats, "statistics of a topic")


def _children(client: AdminClient, topic: TopicName, segment: int) -> str:
    """What came of a segment, as ` into 3 and 4`; empty if somebody deleted the topic in the meantime."""
    from gateway.admin_client import AdminError

    try:
        sealed = _decode(client.get_topic(topic)).layout.segments.get(segment)
    except AdminError:
        return ""
    return f" into {_ids(sealed.child_ids, ' and ')}" if sealed and sealed.child_ids else ""


def _overview(name: TopicName, record: TopicRecord) -> RenderableType:
    layout = record.layout
    active = sum(segment.is_active for segment in layout.segments.values())
    text = cell(str(name), "bold")
    text.append(f"\nepoch {layout.epoch}, {active} active and {len(layout.segments) - active} sealed segments", "dim")
    for key, value in sorted(record.properties.items()):
        text.append("\n").append_text(cell(key, "cyan")).append(" = ", "default").append_text(cell(value, "default"))
    return text


def _segment_table(layout: Layout) -> RenderableType:
    numbers = ("segment", "share", "since epoch")
    headings = ("segment", "range", "share", "state", "from", "into", "since epoch", "created")
    made = table(*headings, right=numbers, whole=("segment", "range", "share", "state", "created"))
    for segment in layout.segments.values():
        made.add_row(*_segment_cells(segment), style=None if segment.is_active else "dim")
    return made


def _segment_cells(segment: Segment) -> tuple[str, ...]:
    share = (segment.range.end - segment.range.start + 1) / _RING
    return (
        str(segment.segment_id),
        str(segment.range),
        f"{share:.2%}",
        segment.state.lower(),
        _ids(segment.parent_ids),
        _ids(segment.child_ids),
        str(segment.created_at_epoch),
        moment(segment.created_at_ms),
    )


def _ids(ids: tuple[int, ...], separator: str = ", ") -> str:
    return separator.join(map(str, ids))
