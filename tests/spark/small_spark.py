"""Settings for Spark with a handful of rows: less compiling and checking, which is most of what it would do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Spark's own classes are believed unchecked: a tenth of what a short job computes.
COMPILE_LESS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def small_spark(directory: Path) -> dict[str, str]:
    """For the environment of a command, and of all processes of Java that it starts."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key} {value}\n" for key, value in SMALL.items())
    (directory / "spark-defaults.conf").write_text(lines)
    return {"JDK_JAVA_OPTIONS": COMPILE_LESS, "SPARK_CONF_DIR": str(directory)}
