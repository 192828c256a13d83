"""A small Spark of this process, shared by its tests because it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# For frames of a few rows: what makes Spark fast with millions takes longer here than all the rest.
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("vela-tests", "local[2]", SMALL) as session:
        yield session
