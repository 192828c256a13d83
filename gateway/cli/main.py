"""The `vela` command: puts the commands together and ends every failure with one sentence."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gateway.cli import (
    config,
    consume,
    doctor,
    namespaces,
    nodes,
    produce,
    schemas,
    subscriptions,
    topics,
    trace,
    watch,
)
from gateway.cli.failures import alone, sentence
from gateway.cli.options import with_settings
from gateway.settings import Settings

_RUNNING, _USING = "Run a server", "Use a server"

app = typer.Typer(
    name="vela",
    no_args_is_help=True,
    rich_markup_mode="rich",
    # A traceback is never the answer; `main` writes the sentence.
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"vela {version('vela')}")
        raise typer.Exit


@app.callback()
def vela(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A server for Apache Pulsar 5 scalable topics, and the commands to use it."""


@app.command(rich_help_panel=_RUNNING)
@with_settings()
def serve(settings: Settings) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    It needs no settings: by itself it keeps its data in an embedded store.
    When ready it prints: ready pulsar://HOST:PORT http://HOST:PORT
    """
    from gateway import logs
    from gateway.process import run

    logs.configure(settings.log_level, settings.log_format)
    raise typer.Exit(run(settings))


app.command(rich_help_panel=_RUNNING)(doctor.doctor)
app.add_typer(config.app, name="config", rich_help_panel=_RUNNING)
app.add_typer(topics.app, name="topics", rich_help_panel=_USING)
app.add_typer(subscriptions.app, name="subscriptions", rich_help_panel=_USING)
app.add_typer(schemas.app, name="schemas", rich_help_panel=_USING)
app.add_typer(namespaces.app, name="namespaces", rich_help_panel=_USING)
app.command(rich_help_panel=_USING)(nodes.nodes)
app.command(rich_help_panel=_USING)(produce.produce)
app.command(rich_help_panel=_USING)(consume.consume)
app.add_typer(watch.app, name="watch", rich_help_panel=_USING)
app.add_typer(trace.app, name="trace", rich_help_panel=_USING)


def main() -> None:
    try:
        app()
    except Exception as caught:
        error = alone(caught)
        if isinstance(error, BrokenPipeError):
            # The reader, as in `vela watch … | head`, has had enough. What is still buffered has nowhere to go,
            # and the interpreter's last flush would complain about it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            print(f"vela: {sentence(error)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
