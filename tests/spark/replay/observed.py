"""Observations of a replay, written by hand: times in milliseconds, everything that does not matter left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark.schemas import OBSERVATIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "public/replay-1-shop"
Observation = dict[str, Any]


def write(op: str, topic: str, due: float, sent: float | None = None, **more: Any) -> Observation:
    """A write that was sent when it was due, unless told otherwise."""
    sent_us = _us(due if sent is None else sent)
    told = {"due_us": _us(due), "sent_us": sent_us, "done_us": sent_us + 300, "namespace": NAMESPACE}
    return {"record": "write", "op": op, "topic": topic, **told, **more}


def push(watcher: int, arrival: float, *, added: Sequence[str] = (), removed: Sequence[str] = (), **more: Any) -> Any:
    told = {"added": list(added), "removed": list(removed), "after_reconnect": False, "bytes": 100}
    return {
        "record": "push",
        "watcher": watcher,
        "namespace": NAMESPACE,
        "arrival_us": _us(arrival),
        **told,
        **more,
    }


def dag_push(watcher: int, topic: str, epoch: int | None, arrival: float, **more: Any) -> Observation:
    return {**push(watcher, arrival), "topic": topic, "epoch": epoch, **more}


def watcher(number: int, *, pushes: int = 0, topic: str | None = None, **more: Any) -> Observation:
    told = {"converged": True, "missing": 0, "duplicate": 0, "out_of_order": 0, "snapshots": 0, "reconnects": 0}
    return {
        "record": "watcher",
        "watcher": number,
        "namespace": NAMESPACE,
        "topic": topic,
        "watches": "topic" if topic else "namespace",
        "pushes": pushes,
        "bytes": 100 * pushes,
        **told,
        **more,
    }


def absence(number: int, left: float, back: float) -> Observation:
    return {
        "record": "absence",
        "watcher": number,
        "namespace": NAMESPACE,
        "left_us": _us(left),
        "back_us": _us(back),
    }


def task(number: int = 0, *, settled: float = 1_000, **more: Any) -> Observation:
    told = {"host": "here", "offset_us": 40, "offset_error_us": 80, "started_us": 0, "settled_us": _us(settled)}
    return {"record": "task", "task": number, "cpu_us": 500_000, **told, **more}


def observations(spark: SparkSession, *rows: Observation) -> DataFrame:
    whole = [{name: row.get(name) for name in OBSERVATIONS.names} | {"task": row.get("task", 0)} for row in rows]
    return spark.createDataFrame(whole, OBSERVATIONS)


def _us(milliseconds: float) -> int:
    return round(milliseconds * 1_000)
