"""`python -m spark.packing environment.tar.gz`: what the executors of a cluster need, as an archive for `--archives`.

The packages are copied from the environment that this runs in, so executors get the very versions that were tested.
They bring a Python of the same minor version; PySpark comes with Spark. In the archive, `bin/python` starts that Python
with the packages, wherever the archive was unpacked.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib import metadata as installed
from pathlib import Path, PurePosixPath
from typing import Final

from spark.errors import JobError

# What the tasks import, and what PySpark needs beside them to hand tables over.
ROOTS: Final = (
    "crc32c",
    "hiredis",
    "httpx",
    "mmh3",
    "msgspec",
    "numpy",
    "pandas",
    "protobuf",
    "pyarrow",
    "redis",
    "rich",
    "trio",
    "typer",
)
OUR_PACKAGES: Final = ("layout", "metadata", "protocol", "spark")
# A third of the size, and nothing that a task would ever read.
_LEFT_OUT: Final = frozenset(("__pycache__", "tests", "include", "bin"))
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][-._A-Za-z0-9]*)[^;]*(;.*)?", re.DOTALL)
_VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# The first of them counts that is there and of the right version.
_START: Final = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
for python in "$VELA_PYTHON" python{_VERSION} python3; do
  if [ -n "$python" ] && "$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{_VERSION}")' 2>/dev/null
  then exec "$python" "$@"
  fi
done
echo "vela: This environment needs Python {_VERSION}: install it on every executor, or name it with VELA_PYTHON." >&2
exit 1
"""


def pack(target: Path) -> int:
    """Write the archive; how many files it has."""
    count = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    # Most of it is machine code that packs well enough at once.
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for place, source in _files():
            archive.add(source, f"lib/{place}", recursive=False)
            count += 1
        start = tarfile.TarInfo("bin/python")
        start.size, start.mode = len(_START), 0o755
        archive.addfile(start, io.BytesIO(_START.encode()))
    return count + 1


def _files() -> Iterator[tuple[PurePosixPath, Path]]:
    """(place below `lib`, file) of everything that is packed."""
    for name in _closure(ROOTS):
        distribution = installed.distribution(name)
        for file in distribution.files or ():
            if ".." not in file.parts and not _LEFT_OUT.intersection(file.parts):
                source = Path(str(distribution.locate_file(file)))
                if source.is_file():
                    yield PurePosixPath(file), source
    root = Path(__file__).resolve().parent.parent
    for package in OUR_PACKAGES:
        for source in sorted((root / package).rglob("*")):
            if source.is_file() and not _LEFT_OUT.intersection(source.relative_to(root).parts):
                yield PurePosixPath(source.relative_to(root)), source


def _closure(names: Sequence[str]) -> list[str]:
    """These distributions and all that they need, as far as that is installed: markers hold here as they do there."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requirements = installed.requires(name) or ()
        except installed.PackageNotFoundError:
            if name in names:
                raise JobError(f"{name} is not installed here: install vela[spark], then pack again.") from None
            continue
        found[name] = None
        for requirement in requirements:
            match = _REQUIREMENT.match(requirement)
            if match is not None and "extra" not in (match[2] or ""):
                waiting.append(match[1])
    return sorted(found)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not arguments[0].endswith(".tar.gz"):
        print("usage: python -m spark.packing environment.tar.gz", file=sys.stderr)
        return 2
    target = Path(arguments[0])
    try:
        count = pack(target)
    except (JobError, OSError) as error:
        print(f"vela: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {count:,} files, {target.stat().st_size / 1e6:.0f} MB, for Python {_VERSION}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
