"""What a check of `vela doctor` found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the thing looked at, `seen` what it was like, `advice` what to do unless all is well."""

    status: Status
    check: str
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(Status.OK, check, seen)


def warn(check: str, seen: str, advice: str) -> Finding:
    return Finding(Status.WARN, check, seen, advice)


def fail(check: str, seen: str, advice: str) -> Finding:
    return Finding(Status.FAIL, check, seen, advice)
