"""What a task sees is kept without holding up its writes."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from spark.replay.observing import Observations
with Observations(0) as observations:
    loaded = set(sys.modules)
    observations.add_rows("watcher", [{"namespace": "shop/orders", "watcher": 1, "added": ["a"], "converged": True}])
    print(sorted(name for name in set(sys.modules) - loaded if name.partition(".")[0] == "pandas"))
"""


def test_first_row_loads_no_library_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
