"""The directory of results: made beside its place and moved there when it is whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from spark.analysis.summary import FORMAT
from spark.errors import JobError

SUMMARY: Final = "summary.json"
REPORT: Final = "report.html"


class _Heading(msgspec.Struct):
    format: str = ""


def check_place(out: Path) -> None:
    """Refuse what is neither free nor the result of an earlier analysis, which is replaced."""
    if not out.exists():
        if not out.parent.is_dir():
            raise JobError(f"There is no directory {out.parent} to put {out.name} into: make it first.")
    elif not out.is_dir():
        raise JobError(f"{out} is a file: give a directory for the results.")
    elif any(out.iterdir()) and not _is_ours(out):
        raise JobError(f"{out} holds something else than an earlier analysis: give another directory.")


@contextmanager
def placing(out: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of `out` at the end of the block, or is gone if the block failed."""
    out = out.absolute()
    check_place(out)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        if out.exists():
            earlier = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
            out.rename(earlier / out.name)
            scratch.rename(out)
            shutil.rmtree(earlier)
        else:
            scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_ours(out: Path) -> bool:
    try:
        return msgspec.json.decode((out / SUMMARY).read_bytes(), type=_Heading).format == FORMAT
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
