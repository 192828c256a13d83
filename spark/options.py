"""Options that several commands of the pipeline have."""

from __future__ import annotations

from typing import Annotated

import typer

Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="The Spark master.", show_default="local[*], or what spark-submit says"
    ),
]
