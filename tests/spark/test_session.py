from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.errors import JobError
from spark.session import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that(home: Path, script: str) -> dict[str, str]:
    """The environment of a machine whose Java does this."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(home)}


def test_a_machine_without_java_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is none here: install a JDK or JRE 17 or newer"):
        check_java({"PATH": str(tmp_path)})


def test_a_java_home_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="gone/bin/java does not run: install"):
        check_java({"JAVA_HOME": str(tmp_path / "gone")})


def test_a_java_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not run"):
        check_java(java_that(tmp_path, "exit 1"))


@pytest.mark.parametrize(
    ("printed", "version"), [('java version "1.8.0_402"', "8"), ('openjdk version "11.0.2"', "11")]
)
def test_a_java_that_is_too_old_is_told_by_its_version(tmp_path: Path, printed: str, version: str) -> None:
    with pytest.raises(JobError, match=f"17 or newer, and .* is version {version}:"):
        check_java(java_that(tmp_path, f"echo '{printed}' >&2"))


def test_what_is_no_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no version that Spark knows"):
        check_java(java_that(tmp_path, "echo hello >&2"))


@pytest.mark.parametrize("printed", ['openjdk version "17.0.11" 2024-04-16', 'openjdk version "21" 2023-09-19'])
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, printed: str) -> None:
    check_java(java_that(tmp_path, f"echo '{printed}' >&2"))


def test_the_master_is_the_one_that_was_asked_for(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2]"


def test_the_session_tells_time_in_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
