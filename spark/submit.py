"""What spark-submit runs: `spark-submit --archives environment.tar.gz#environment spark/submit.py replay DIR …`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder comes first among the places to import from, and ours has modules whose names others use.
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here]
    try:
        import spark.cli
    except ImportError:
        sys.path.insert(0, str(here.parent))
        import spark.cli
    spark.cli.main()
