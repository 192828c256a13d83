"""`python -m benchmarks.hostile [--quick] [PART ...]`: the attacks whose names contain any of these, told one by one as
they are measured.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys

from rich.console import Console

from benchmarks.figures import MeasurementFailed, print_table
from benchmarks.hostile.attacks import ATTACKS
from benchmarks.hostile.measuring import measured


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of attacks (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny numbers: shows that it works, means nothing")
    options = parser.parse_args()
    chosen = [it for it in ATTACKS.values() if not options.parts or any(part in it.name for part in options.parts)]
    if not chosen:
        parser.error(f"no such attack; there are: {'; '.join(ATTACKS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    console = Console(width=160)
    try:
        for figures in measured(chosen, options.quick):
            print_table(figures, console)
    except (MeasurementFailed, OSError) as error:
        console.print(f"could not be measured: {error}", style="bold red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
