"""The CPU and memory of the node under test, read from its `/metrics` every second while a replay runs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import httpx
import msgspec

from spark.errors import JobError

_INTERVAL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_CPU: Final = "process_cpu_seconds_total"
_MEMORY: Final = "process_resident_memory_bytes"
_SAMPLE: Final = re.compile(rf"^({_CPU}|{_MEMORY}) (\S+)$", re.MULTILINE)


class NodeSample(msgspec.Struct, frozen=True):
    """The node at one moment; `at_s` is the wall clock, to be laid beside the times of the run."""

    at_s: float
    cpu_s: float
    memory_bytes: float


class NodeSecond(msgspec.Struct, frozen=True):
    second: float
    cpu_share: float  # of one core
    memory_bytes: float


def parse_page(page: str, at_s: float) -> NodeSample | None:
    """None if the page is not that of a process."""
    found = dict(_SAMPLE.findall(page))
    if _CPU not in found or _MEMORY not in found:
        return None
    return NodeSample(at_s, float(found[_CPU]), float(found[_MEMORY]))


def usage(samples: list[NodeSample], started_s: float) -> list[NodeSecond]:
    """CPU between samples, and memory at each, over the seconds since the start; what was before is left out."""
    return [
        NodeSecond(
            now.at_s - started_s,
            max(0.0, now.cpu_s - before.cpu_s) / (now.at_s - before.at_s),
            now.memory_bytes,
        )
        for before, now in pairwise(samples)
        if now.at_s > before.at_s and now.at_s >= started_s
    ]


def check_metrics(admin_url: str) -> None:
    """Refuse an address that does not tell the metrics of a node."""
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            page = client.get(_url(admin_url)).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise JobError(f"--admin-url {admin_url} does not tell metrics: {error}") from None
    if parse_page(page, 0.0) is None:
        raise JobError(f"--admin-url {admin_url} does not tell the metrics of a node: give that of a Vela server.")


@contextmanager
def sampled(admin_url: str | None) -> Iterator[list[NodeSample]]:
    """The samples taken while the block runs; none without an address."""
    samples: list[NodeSample] = []
    if admin_url is None:
        yield samples
        return
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(admin_url, samples, stop), name="node-metrics", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _sample(admin_url: str, samples: list[NodeSample], stop: threading.Event) -> None:
    with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
        while not stop.is_set():
            try:
                sample = parse_page(client.get(_url(admin_url)).text, time.time())
            except httpx.HTTPError:
                sample = None  # a hole in the curve says that the node did not answer
            if sample is not None:
                samples.append(sample)
            stop.wait(_INTERVAL_S)


def _url(admin_url: str) -> str:
    return f"{admin_url.rstrip('/')}/metrics"
