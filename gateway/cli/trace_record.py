"""`vela trace record`: writes what changes in a store to the directory of a trace, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import BadArgument
from gateway.cli.terminal import shown
from gateway.logs import redact_url
from gateway.setting_kinds import EMBEDDED, STORE

if TYPE_CHECKING:
    from gateway.recorder.recording import Plan


def record(
    store: Annotated[
        str,
        typer.Option(
            envvar="VELA_STORE",
            metavar="URL",
            help="The store to follow, as for the server's --store.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A new directory, or the trace to go on with.", show_default=False),
    ],
    values: Annotated[bool, typer.Option(help="Record each topic's record with its changes.")] = True,
    anonymise: Annotated[
        bool,
        typer.Option("--anonymise", help="Write pseudonyms for tenants, namespaces, topics and properties."),
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            "--anonymise-key",
            metavar="FILE",
            help="A secret that makes the pseudonyms: with the same one, a trace can be gone on with.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Record every change in a store, until Ctrl-C or SIGTERM.

    A server can do the same with --record; this one needs none. The store
    of a server with an embedded one is unix://DATA_DIR/valkey.sock.
    """
    import trio

    from gateway import logs
    from gateway.recorder.opening import Naming
    from gateway.recorder.recording import Plan

    url = _checked(store)
    logs.configure("warning", "text")
    # Until the loop takes the signals over, they end us: nothing is recorded yet.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    trio.run(_record, url, Plan(out, values=values, naming=Naming(anonymise, key)))


async def _record(url: str, plan: Plan) -> None:
    import trio

    from gateway.recorder.following import following

    written = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_when_signalled() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(stop_when_signalled)
            async with following(url, plan) as recorder:
                written, counters = recorder.written, recorder.counters
                print(f"recording {redact_url(url)} to {shown(str(plan.directory))}; Ctrl-C ends it", flush=True)
                await trio.sleep_forever()
    if written is not None:
        missing = f", {counters.values_missing} values missing" if counters.values_missing else ""
        dropped = f"{counters.gaps} gaps, {counters.dropped} changes dropped{missing}"
        print(f"recorded {written.events} events; {dropped}", flush=True)


def _checked(text: str) -> str:
    try:
        url = str(STORE.parse(text))
    except ValueError:
        raise BadArgument(f'"{redact_url(text)}" names no store: give {STORE.allowed}.') from None
    if url == EMBEDDED:
        raise BadArgument(
            "An embedded store belongs to its server: give unix://DATA_DIR/valkey.sock, or serve --record."
        )
    return url
