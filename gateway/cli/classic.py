"""What `vela topics …` does with classic topics, which are named persistent://."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.options import BadArgument, admin_client, parse_namespace
from gateway.cli.terminal import cell, moment, print_json, print_parts

if TYPE_CHECKING:
    from gateway.admin_client import AdminClient
    from gateway.cli.answers import ClassicTopic
    from protocol.names import NamespaceName, TopicName

_SCHEME = "persistent://"


def is_classic(topic: TopicName) -> bool:
    return str(topic).startswith(_SCHEME)


def required(topic: TopicName) -> TopicName:
    if not is_classic(topic):
        raise BadArgument(f"{topic} has segments and no partitions: give a persistent:// name.")
    return topic


def namespace_of(text: str) -> NamespaceName | None:
    """The namespace whose classic topics are meant; None where its scalable ones are."""
    return parse_namespace(text.removeprefix(_SCHEME)) if text.startswith(_SCHEME) else None


def create(topic: TopicName, partitions: int | None, properties: Mapping[str, str], admin_url: str) -> None:
    with admin_client(admin_url) as client:
        if partitions is None:
            client.create_classic(topic, properties)
        else:
            client.create_partitioned(topic, partitions, properties)
    print(f"Created {topic}{'' if partitions is None else f' with {_counted(partitions)}'}.")


def show(topic: TopicName, *, as_json: bool, admin_url: str) -> None:
    with admin_client(admin_url) as client:
        content = client.get_topic(topic)
        found = _read(client, content)
    if as_json:
        print_json(content)
        return
    text = cell(found.name, "bold")
    state = "migrated to a scalable topic, " if found.sealed else ""
    text.append(f"\n{state}{_counted(found.partitions)}, created {moment(found.created_at_ms)}", "dim")
    for key, value in sorted(found.properties.items()):
        text.append("\n").append_text(cell(key, "cyan")).append(" = ", "default").append_text(cell(value, "default"))
    print_parts(text)


def show_or_set_partitions(topic: TopicName, number: int | None, admin_url: str) -> None:
    with admin_client(admin_url) as client:
        if number is None:
            print(_read(client, client.get_topic(topic)).partitions)
            return
        client.set_partitions(topic, number)
    print(f"{topic} has {_counted(number)} now.")


def delete(topic: TopicName, *, force: bool, admin_url: str) -> None:
    with admin_client(admin_url) as client:
        if _read(client, client.get_topic(topic)).partitions:
            client.delete_partitioned(topic, force=force)
        else:
            client.delete_topic(topic, force=force)
    print(f"Deleted {topic}.")


def _read(client: AdminClient, content: bytes) -> ClassicTopic:
    from gateway.cli.answers import ClassicTopic, read

    return read(client, content, ClassicTopic, "classic topic")


def _counted(partitions: int) -> str:
    return f"{partitions or 'no'} partition{'' if partitions == 1 else 's'}"
