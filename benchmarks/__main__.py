"""`python -m benchmarks [NAME ...] [--quick] [--json]`: measures and prints figures. A missed target is a result, not
a failure: the exit code is 1 only when something could not be measured.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

import httpx
from rich.console import Console

from benchmarks import (
    analysis,
    burst,
    creates,
    delayed,
    dispatch,
    failover,
    idle,
    memory,
    messages,
    push,
    rebalance,
    record,
    replay,
    segments,
    stalled,
    start,
    storm,
    watches,
)
from benchmarks.figures import Figure, MeasurementFailed, as_json, print_table
from benchmarks.hostile import measuring as hostile

BENCHMARKS: Mapping[str, Callable[[bool], list[Figure]]] = {
    "push": push.measure,
    "start": start.measure,
    "memory": memory.measure,
    "storm": storm.measure,
    "burst": burst.measure,
    "watches": watches.measure,
    "stalled": stalled.measure,
    "creates": creates.measure,
    "failover": failover.measure,
    "rebalance": rebalance.measure,
    "idle": idle.measure,
    "messages": messages.measure,
    "dispatch": dispatch.measure,
    "delayed": delayed.measure,
    "segments": segments.measure,
    "hostile": hostile.measure,
    "record": record.measure,
    "analysis": analysis.measure,
    "replay": replay.measure,
}
# The server and the readers hold some 2,200 sockets each; the usual soft limit is 1,024.
OPEN_FILES = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Figures as ratios against a floor.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny numbers: shows that it works, means nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")

    # Ends the way Ctrl-C does, so that the servers that were started are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most), most)
    )

    console = Console(stderr=options.json)
    figures: list[Figure] = []
    failed = False
    for name in options.names or BENCHMARKS:
        try:
            with console.status(f"measuring {name}"):
                figures += BENCHMARKS[name](options.quick)
        except (MeasurementFailed, OSError, httpx.HTTPError) as error:
            console.print(f"{name} could not be measured: {error}", style="bold red", markup=False)
            failed = True
    if options.json:
        print(as_json(figures))
    elif figures:
        print_table(figures, console)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
