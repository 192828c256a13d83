"""Reads the byte-exact examples in tests/vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "vectors"


def lines(name: str) -> list[dict[str, Any]]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / "wire_schema.json").read_text(encoding="utf-8"))
    return document
