"""`vela schemas …`: show, list, upload, check and delete the schemas of a topic through the admin API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.options import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    BadArgument,
    Json,
    Properties,
    Topic,
    admin_client,
    parse_properties,
    parse_topic,
)
from gateway.cli.terminal import cell, moment, print_json, print_parts, shown, table

app = typer.Typer(no_args_is_help=True, help="Show, upload, check and delete the schemas of a topic.")

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        show_default=False,
        help="With --type the definition; without it JSON with type, schema and properties, as Pulsar's tools take it.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--type", "-t", metavar="TYPE", help="As avro, json, string or int64; those without parts need no file."
    ),
]


@app.command()
def get(
    topic: Topic,
    version: Annotated[
        int | None, typer.Option("--version", min=0, metavar="N", help="Another version than the last.")
    ] = None,
    as_json: Json = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Show the schema of a topic."""
    from gateway.cli.answers import TopicSchema, read

    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        content = client.get_schema(name, version)
        found = read(client, content, TopicSchema, "schema")
    if as_json:
        print_json(content)
        return
    since = moment(found.timestamp)
    print(f"Version {found.version}, {shown(found.type.lower())}{f', since {since}' if since else ''}.")
    for key, value in sorted(found.properties.items()):
        print(f"{shown(key)}={shown(value)}")
    if found.data:
        _print_definition(found.data)


@app.command("list")
def list_versions(topic: Topic, as_json: Json = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """List the versions of the schema of a topic."""
    from gateway.cli.answers import TopicSchemas, read

    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        content = client.list_schemas(name)
        found = read(client, content, TopicSchemas, "list of schemas").get_schema_responses
    if as_json:
        print_json(content)
    elif found:
        made = table("version", "type", "created", "bytes", right=("version", "bytes"), whole=("type", "created"))
        for schema in found:
            size = str(len(schema.data.encode()))
            made.add_row(str(schema.version), cell(schema.type.lower()), moment(schema.timestamp), size)
        print_parts(made)


@app.command()
def upload(
    topic: Topic,
    file: File = None,
    kind: Kind = None,
    properties: Properties = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Give a topic a schema, or a new version of it; it must fit the ones before."""
    from gateway.cli.answers import SchemaVersion, read

    name, sent = parse_topic(topic), _payload(file, kind, properties)
    with admin_client(admin_url) as client:
        number = read(client, client.upload_schema(name, sent), SchemaVersion, "version of a schema").version
    print(f"{name} has this schema as version {number}.")


@app.command()
def check(
    topic: Topic,
    file: File = None,
    kind: Kind = None,
    properties: Properties = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Say whether a schema would fit a topic; the exit code is 1 if it would not."""
    from gateway.cli.answers import SchemaFit, read

    name, sent = parse_topic(topic), _payload(file, kind, properties)
    with admin_client(admin_url) as client:
        fit = read(client, client.check_schema(name, sent), SchemaFit, "verdict about a schema")
    strategy = shown(fit.schema_compatibility_strategy)
    print(f"The schema {'fits' if fit.compatibility else 'does not fit'} {name} ({strategy}).")
    if not fit.compatibility:
        raise typer.Exit(1)


@app.command()
def delete(
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="For good: messages written with it cannot be read any more.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete the schema of a topic with all versions, so that it can get any other."""
    name = parse_topic(topic)
    with admin_client(admin_url) as client:
        client.delete_schema(name, force=force)
    print(f"{name} has no schema any more.")


def _payload(file: Path | None, kind: str | None, properties: list[str] | None) -> dict[str, Any]:
    """What the admin API is sent."""
    given = parse_properties(properties)
    text = "" if file is None else _text(file)
    if kind is not None:
        return {"type": kind.upper().replace("-", "_"), "schema": text, "properties": given}
    if file is None:
        raise typer.BadParameter("give a file, or the type of a schema that needs none.", param_hint="FILE, --type")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict) or not {"type", "schema"} <= payload.keys():
        raise BadArgument(f"{file} is not JSON with type and schema: give the type of a definition with --type.")
    merged = payload.get("properties")
    return payload | {"properties": (merged if isinstance(merged, dict) else {}) | given}


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise BadArgument(f"{file} is not UTF-8 text: give the file of a schema.") from None


def _print_definition(text: str) -> None:
    try:
        print_json(json.loads(text))
    except (ValueError, RecursionError):
        # Of a type whose definitions are no JSON.
        print(shown(text))
