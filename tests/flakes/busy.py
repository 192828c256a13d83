"""Loops that take a core each, so that everything else is late."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# It ends by itself soon after whoever started it, however that ended.
_LOOP: Final = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """So many of them while the block runs; their process ids."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        while len(loops) < count:
            loops.append(subprocess.Popen([sys.executable, "-S", "-c", _LOOP, str(os.getpid())], process_group=0))
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
