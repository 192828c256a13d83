"""What the kernel says about another process: its CPU time and its resident memory. Linux only."""

from __future__ import annotations

import time
from pathlib import Path

# The clock of all threads of a process, at the resolution of the scheduler: the low three bits of its number ask
# for that kind, the others are the complement of the process number (clock_getcpuclockid(3)). /proc/PID/stat has
# the same sum, but in ticks of 10 ms.
_CPU_CLOCK_OF_ALL_THREADS = 2


def cpu_seconds(pid: int) -> float:
    """CPU time that the process has used, in user code and in the kernel."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_ALL_THREADS)


def resident_bytes(pid: int) -> int:
    """Resident memory; the sum over all mappings is exact, the number in /proc/PID/status may lag behind."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Rss":
            return int(rest.split()[0]) * 1024
    raise OSError(f"the kernel does not tell the resident memory of process {pid}")
