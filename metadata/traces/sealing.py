"""`python -m metadata.traces.sealing LOG PARENT`: turns one log into Parquet, in a process of its own.

A recorder runs this as a child, so that neither its memory nor its interpreter has to hold a whole part. What it prints
is what somebody should know about a log that was sealed all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

from metadata.traces.completing import seal_log
from metadata.traces.errors import TraceError

# Behind whatever the recording process has to do.
_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    [log, parent] = arguments
    os.nice(_NICENESS)
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
