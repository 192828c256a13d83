"""How long sealed segments are kept: shown or set, alike for a topic and for a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import admin_client

if TYPE_CHECKING:
    from gateway.admin_client import AdminClient
    from protocol.names import NamespaceName, TopicName

Minutes = Annotated[
    int | None,
    typer.Option(
        "--minutes",
        min=-1,
        metavar="N",
        help="Keep them this long, and the server's message_age at least; -1 for ever.",
    ),
]

Megabytes = Annotated[
    int | None,
    typer.Option("--megabytes", min=-1, metavar="N", help="Of each segment keep no more than that; -1 for any size."),
]


def show_or_set(
    name: TopicName | NamespaceName,
    minutes: int | None,
    megabytes: int | None,
    *,
    clear: bool,
    otherwise: str,
    admin_url: str,
) -> None:
    """Do what the options say, and tell what holds then; `otherwise` is who says where nothing is set."""
    if clear and minutes is not None:
        raise typer.BadParameter("give only one of them.", param_hint="--minutes, --clear")
    if megabytes is not None and minutes is None:
        raise typer.BadParameter("give --minutes as well; -1 is for ever.", param_hint="--megabytes")
    with admin_client(admin_url) as client:
        if clear:
            client.clear_retention(name)
        elif minutes is not None:
            client.set_retention(name, minutes, megabytes)
        else:
            minutes, megabytes = _set(client, name)
    print(f"{name} keeps sealed segments {_kept(minutes, otherwise)}.{_within(megabytes)}")


def _set(client: AdminClient, name: TopicName | NamespaceName) -> tuple[int | None, int | None]:
    from gateway.cli.answers import Retention, read

    content = client.get_retention(name)
    if not content:
        return None, None
    found = read(client, content, Retention, "retention")
    return found.retention_time_in_minutes, found.retention_size_in_mb


def _kept(minutes: int | None, otherwise: str) -> str:
    if minutes is None:
        return f"as long as {otherwise} says"
    if minutes < 0:
        return "for ever"
    if minutes == 0:
        return "until they are consumed, and the server's message_age at least"
    return f"until they are consumed, and {minutes} minute{'' if minutes == 1 else 's'} at least"


def _within(megabytes: int | None) -> str:
    if megabytes is None or megabytes < 0:
        return ""
    return f" What was consumed goes earlier where a segment is larger than {megabytes} MB."
