"""`python -m metadata.traces.sealing LOG PARENT`: turns one log into Parquet, in a process of its own.

A recorder runs this as a child, so that neither its memory nor its interpreter has to hold a whole part. What it prints
is what somebody should know about a log that was sealed all the same.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from metadata.traces.completing import seal_log
from metadata.traces.errors import TraceError

# Behind whatever the recording process has to do.
_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas, where that is installed, to see whether it is given something of it: that takes longer than
    all the rest."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("sealing does without pandas", name=fullname)


def main(arguments: list[str]) -> int:
    [log, parent] = arguments
    os.nice(_NICENESS)
    sys.meta_path.insert(0, _WithoutPandas())
    gc.disable()  # nothing here refers to itself, and the process ends soon
    if sys.platform == "linux":
        # An orphan would go on writing beside the next recorder.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            return 1
    path = Path(log)
    try:
        sealed = seal_log(path)
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if sealed.damage is not None:
        print(sealed.damage.sentence(path.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
