"""`vela namespaces …`: list, create and delete namespaces through the admin API, and their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import DEFAULT_ADMIN_URL, AdminUrl, BadArgument, Json, admin_client, parse_namespace
from gateway.cli.retention import Megabytes, Minutes, show_or_set
from gateway.cli.terminal import print_json

if TYPE_CHECKING:
    from gateway.admin_client import AdminClient

app = typer.Typer(no_args_is_help=True, help="List, create and delete namespaces.")

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="As tenant/namespace.")]


@app.command("list")
def list_namespaces(
    tenant: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", show_default=False, help="Only those of this tenant.")
    ] = None,
    as_json: Json = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """List the namespaces, one per line."""
    if tenant is not None:
        check_tenant(tenant)
    with admin_client(admin_url) as client:
        names = _all_namespaces(client) if tenant is None else _namespaces(client, tenant)
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


@app.command()
def create(namespace: Namespace, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Create a namespace."""
    name = parse_namespace(namespace)
    with admin_client(admin_url) as client:
        client.create_namespace(name)
    print(f"Created {name}.")


@app.command()
def delete(
    namespace: Namespace,
    force: Annotated[bool, typer.Option("--force", "-f", help="With all topics that are in it.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a namespace."""
    name = parse_namespace(namespace)
    with admin_client(admin_url) as client:
        client.delete_namespace(name, force=force)
    print(f"Deleted {name}{' with all its topics' if force else ''}.")


@app.command()
def retention(
    namespace: Namespace,
    minutes: Minutes = None,
    megabytes: Megabytes = None,
    clear: Annotated[bool, typer.Option("--clear", help="Leave it to the server.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Show or set how long topics of a namespace keep their sealed segments, where they do not say it themselves."""
    show_or_set(
        parse_namespace(namespace), minutes, megabytes, clear=clear, otherwise="the server", admin_url=admin_url
    )


def check_tenant(text: str) -> None:
    from protocol.names import NamespaceName

    if "/" in text:
        raise BadArgument(f'"{text}" is no tenant: give what stands before the slash.')
    # The only name that has a tenant and nothing else to complain about.
    NamespaceName(text, "default")


def _all_namespaces(client: AdminClient) -> list[str]:
    from gateway.admin_client import AdminError
    from gateway.cli.answers import read

    names: list[str] = []
    for tenant in read(client, client.list_tenants(), list[str], "list of tenants"):
        try:
            names += _namespaces(client, tenant)
        except AdminError as error:
            # A tenant goes with its last namespace, also between two of our calls.
            if error.status != 404:
                raise
    return names


def _namespaces(client: AdminClient, tenant: str) -> list[str]:
    from gateway.cli.answers import read

    return read(client, client.list_namespaces(tenant), list[str], "list of namespaces")
