"""The Spark session that all jobs run in, and a look at Java before Spark fails for want of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from spark.errors import JobError
from spark.interrupts import interruptible, without_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

OLDEST_JAVA: Final = 17
DEFAULT_MASTER: Final = "local[*]"
# The end of a sentence about a job that had too little.
MORE_MEMORY: Final = "give it more, as with PYSPARK_SUBMIT_ARGS='--driver-memory 8g pyspark-shell'."
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')

_DEFAULTS: Final[Mapping[str, str]] = {
    # Jobs print what is worth knowing; the pages of Spark are for whoever asks for them.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # As small as one machine likes it; adaptive execution makes more of it where there is more to do.
    "spark.sql.shuffle.partitions": "8",
    # On a local disk, without a file of checksums beside each: for every file a program is started to set its rights,
    # and Parquet has checksums of its own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


@contextmanager
def spark_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for one job; `master` None leaves it to spark-submit, or is `local[*]` without that.

    `settings` are what the job cannot do without; in everything else spark-submit has the last word.
    """
    submitted = "SPARK_SUBMIT_OPTS" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java(os.environ)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise JobError("This needs PySpark: install vela with its extra, as in: pip install 'vela[spark]'") from None
    builder = SparkSession.builder.appName(name)
    if master is not None or not submitted:
        builder = builder.master(master or DEFAULT_MASTER)
    given = SparkConf() if submitted else None
    chosen = {key: value for key, value in _DEFAULTS.items() if given is None or not given.contains(key)}
    chosen |= settings or {}
    if not submitted and (master or DEFAULT_MASTER).startswith("local"):
        # Nobody else connects; without this a host whose name leads nowhere cannot run Spark at all.
        chosen.setdefault("spark.driver.host", "127.0.0.1")
        chosen.setdefault("spark.driver.bindAddress", "127.0.0.1")
        # One process does all the work there, and Spark's own default is one gigabyte.
        chosen.setdefault("spark.driver.memory", f"{_share_of_memory()}g")
    with tempfile.TemporaryDirectory(prefix="vela-spark-") as scratch:
        chosen.setdefault("spark.sql.warehouse.dir", str(Path(scratch, "warehouse")))
        for key, value in chosen.items():
            builder = builder.config(key, value)
        try:
            with _stderr_into(Path(scratch, "java.log")):
                # An interrupt is raised once it has started: half a start leaves files behind.
                session = interruptible(builder.getOrCreate)
        except Exception as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise JobError(f"Spark cannot be started on {master or DEFAULT_MASTER}: {first}") from None
        try:
            session.sparkContext.setLogLevel("ERROR")
            yield session
        finally:
            interruptible(lambda: _stop(session))


def _share_of_memory() -> int:
    """A quarter of this machine's, in gigabytes: enough for all jobs, and Python needs some as well."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(1, total // 4 // 2**30), 8)


def run_in(session: SparkSession, work: Callable[[], T]) -> T:
    """Do what takes long; an interrupt ends it with the jobs that it has started."""

    def cancel() -> None:
        try:
            session.sparkContext.cancelAllJobs()
        except Exception:
            pass  # Java got the signal as well, and its jobs have ended with it

    return interruptible(work, cancel)


def _stop(session: SparkSession) -> None:
    # Where Java is gone there is nothing to stop, and PySpark would say so at length.
    with without_logs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            session.stop()
        except Exception:
            pass  # what went wrong before that is what is told


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Processes that are started in the block write their errors into a file: Java greets with a dozen warnings."""
    sys.stderr.flush()
    ours = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def check_java(environ: Mapping[str, str]) -> None:
    """Refuse a machine without a Java that Spark runs on."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    advice = f"install a JDK or JRE {OLDEST_JAVA} or newer, or name one with JAVA_HOME."
    if java is None:
        raise JobError(f"Spark needs Java, and there is none here: {advice}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        raise JobError(f"Spark needs Java, and {java} does not run: {advice}") from None
    found = _VERSION.search(told.stderr) or _VERSION.search(told.stdout)
    if found is None or int(found[1]) < OLDEST_JAVA:
        version = f"version {found[1]}" if found else "no version that Spark knows"
        raise JobError(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is {version}: {advice}")
