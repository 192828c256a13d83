"""How long sealed segments are kept: shown or set, alike for a topic and for a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import admin_client

if TYPE_CHECKING:
    from gateway.admin_client import AdminClient
    from protocol.names import NamespaceName, TopicName

Minutes = Annotated[
    int | None, typer.Option("--minutes", min=-1, metavar="N", help="Keep them this long; -1 for ever.")
]


def show_or_set(
    name: TopicName | NamespaceName, minutes: int | None, *, clear: bool, otherwise: str, admin_url: str
) -> None:
    """Do what the options say, and tell what holds then; `otherwise` is who says where nothing is set."""
    if clear and minutes is not None:
        raise typer.BadParameter("give only one of them.", param_hint="--minutes, --clear")
    with admin_client(admin_url) as client:
        if clear:
            client.clear_retention(name)
        elif minutes is not None:
            client.set_retention(name, minutes)
        else:
            minutes = _minutes(client, name)
    print(f"{name} keeps sealed segments {_kept(minutes, otherwise)}.")


def _minutes(client: AdminClient, name: TopicName | NamespaceName) -> int | None:
    from gateway.cli.answers import Retention, read

    content = client.get_retention(name)
    return read(client, content, Retention, "retention").retention_time_in_minutes if content else None


def _kept(minutes: int | None, otherwise: str) -> str:
    if minutes is None:
        return f"as long as {otherwise} says"
    if minutes < 0:
        return "for ever"
    at_least = f", and {minutes} minute{'' if minutes == 1 else 's'} at least" if minutes else ""
    return f"until they are consumed{at_least}"
