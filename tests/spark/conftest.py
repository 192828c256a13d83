"""A small Spark of this process, shared by its tests because it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark.replay import job
from spark.session import spark_session
from tests.spark.small_spark import COMPILE_LESS, SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    options = (
        SMALL
        | job.settings(longest_wait_s=300.0)
        | {
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": COMPILE_LESS,
        }
    )
    with spark_session("vela-tests", "local[2]", options) as session:
        yield session
