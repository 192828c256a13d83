"""What the commands take: flags made from the table of settings, server URLs, topics and properties."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.failures import CommandError
from gateway.logs import redact_url
from gateway.setting_kinds import url
from gateway.settings import CONFIG_VARIABLE, ROWS, Setting, load

if TYPE_CHECKING:
    from gateway.admin_client import AdminClient
    from protocol.names import NamespaceName, TopicName

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
_SERVER = "Which server"

AdminUrl = Annotated[
    str,
    typer.Option(
        "--admin-url",
        envvar="VELA_ADMIN_URL",
        metavar="URL",
        rich_help_panel=_SERVER,
        help="The server's admin API.",
    ),
]
ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url",
        envvar="VELA_SERVICE_URL",
        metavar="URL",
        rich_help_panel=_SERVER,
        help="The server's binary protocol.",
    ),
]
Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="[bold]topic://tenant/namespace/name[/bold], the same without topic://, or just a name in public/default.",
    ),
]
TOPIC_OF_ANY_KIND = (
    "[bold]topic://tenant/namespace/name[/bold], the same without topic://, or just a name in public/default;"
    " [bold]persistent://tenant/namespace/name[/bold] for a classic topic."
)
AnyTopic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_OF_ANY_KIND)]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="KEY=VALUE", help="A property; may be given several times."),
]
Subscription = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The name of a subscription of the topic.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class BadArgument(CommandError):
    """An argument that no server needs to be asked about."""


def admin_client(url: str) -> AdminClient:
    """The server that --admin-url names."""
    # httpx takes longer to import than all of the command line does.
    from gateway.admin_client import AdminClient

    return AdminClient(url)


def parse_topic(text: str) -> TopicName:
    """The scalable topic that is meant, by whatever name it is called."""
    return parse_any_topic(text).canonical


def parse_any_topic(text: str) -> TopicName:
    """A topic of either kind: `persistent://` names a classic one."""
    from protocol.names import NON_PERSISTENT, TopicName

    if "://" not in text:
        slashes = text.count("/")
        if slashes == 1:
            raise BadArgument(f'"{text}" names no topic: give tenant/namespace/name or a plain name.')
        text = f"topic://{text}" if slashes else f"topic://public/default/{text}"
    topic = TopicName.parse(text)
    if topic.domain == NON_PERSISTENT:
        raise BadArgument(f'"{text}" is not served here: give a topic:// or a persistent:// name.')
    return topic


def parse_interval(text: str, option: str) -> float:
    """Seconds."""
    from gateway.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is no duration: give one like 500ms, 3s or 5m.', param_hint=option
        ) from None


def check_service_url(text: str) -> str:
    try:
        return str(url("pulsar").parse(text))
    except ValueError:
        raise BadArgument(
            f'The service URL "{redact_url(text)}" cannot be used: give one like {DEFAULT_SERVICE_URL}.'
        ) from None


def parse_namespace(text: str) -> NamespaceName:
    from protocol.names import NamespaceName

    return NamespaceName.parse(text)


def parse_subscription(text: str) -> str:
    """Anything that can be written into a URL; the server has the last word."""
    if not text.strip():
        raise BadArgument("The name of the subscription is blank: give it one.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArgument("The name of the subscription is not valid Unicode.") from None
    return text


def parse_properties(given: list[str] | None, option: str = "--property") -> dict[str, str]:
    properties = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise typer.BadParameter(f'"{text}" is no KEY=VALUE.', param_hint=option)
        if key in properties:
            raise typer.BadParameter(f'"{key}" is given twice.', param_hint=option)
        properties[key] = value
    return properties


def with_settings(
    names: Collection[str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of the settings (all, or those named) and --config; it gets the loaded Settings first.

    Values stay text until `load` parses them, so a bad flag reads like a bad variable or a bad line of the file.
    """
    rows = [row for row in ROWS if names is None or row.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        parameters = [*own, _config_parameter(), *map(_parameter, rows)]

        @wraps(command)
        def run(**given: Any) -> None:
            flags = {row.name: given.pop(row.name) for row in rows}
            command(load(flags, os.environ, given.pop("config")), **given)

        # Typer reads the signature and, separately, the annotations.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions take any attribute
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(row: Setting) -> inspect.Parameter:
    words = [row.name.replace("_", "-"), *([row.also] if row.also else ())]
    option = typer.Option(
        *(f"--{word}/--no-{word}" if row.is_switch else f"--{word}" for word in words),
        metavar=None if row.is_switch else row.kind.metavar,
        show_default=False,
        rich_help_panel=row.panel,
        help=_help(row.help, row.default_text, row.variable),
    )
    return _keyword(row.name, Annotated[bool | None if row.is_switch else str | None, option])


def _help(text: str, default: str, variable: str) -> str:
    # Typer would write this itself, but then it would also read the variable, and the value's origin would be lost.
    return rf"{text} [dim]\[env: {variable}, default: {default}][/dim]"


def _config_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        help=_help("A TOML file with settings.", "none", CONFIG_VARIABLE),
    )
    return _keyword("config", Annotated[str | None, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
