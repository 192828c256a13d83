"""Logs: one record per line in both styles, and no passwords."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway import logs


@pytest.fixture(autouse=True)
def _untouched_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(style: str, level: str = "info") -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    logs.configure(level, style, stream)
    return logging.getLogger("gateway.test"), stream


def test_text_lines_carry_time_level_logger_message_and_extra() -> None:
    logger, stream = logged("text")
    logger.warning("bad frame from %s", "10.0.0.1:5", extra={"kind": "oversize"})
    moment, line = stream.getvalue().split(" ", 1)
    assert len(moment) == len("02:41:07.123")
    assert line == "WARNING gateway.test  bad frame from 10.0.0.1:5 kind=oversize\n"


def test_json_lines_carry_the_same_as_fields() -> None:
    logger, stream = logged("json")
    logger.info(
        "bad frame", extra={"kind": "oversize", "peer": ("10.0.0.1", 5), "level": "forged", "error": OSError("x")}
    )
    record = json.loads(stream.getvalue())
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "info",
        "logger": "gateway.test",
        "message": "bad frame",
        "kind": "oversize",
        "peer": ["10.0.0.1", 5],
        "error": "x",
    }


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_break_in_a_message_cannot_forge_a_record(style: str) -> None:
    logger, stream = logged(style)
    logger.info("topic %s", "a\n12:00:00.000 ERROR gateway  forged\x1b[2J")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_logged_with_its_traceback(style: str) -> None:
    logger, stream = logged(style)
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        logger.exception("while testing")
    assert "RuntimeError: it broke" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


def test_records_below_the_level_are_dropped_and_configuring_again_does_not_double_them() -> None:
    logged("text")
    logger, stream = logged("text", "warning")
    logger.info("no")
    logger.warning("yes")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("embedded", "embedded"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:pw@host:6379/0", "redis://user:***@host:6379/0"),
        ("rediss://:pw@host", "rediss://:***@host"),
        ("redis://pw@host", "redis://***@host"),
        ("redis+sentinel://u:pw@a:1,b:2/main", "redis+sentinel://u:***@a:1,b:2/main"),
        ("redis://:p/w?x@y@host/0", "redis://:***@host/0"),
        ("unix:///s?db=0&password=pw&x=1", "unix:///s?db=0&password=***&x=1"),
        ("user:pw@host", "user:***@host"),
        ("http://host:8080", "http://host:8080"),
    ],
)
def test_passwords_in_urls_are_hidden(url: str, shown: str) -> None:
    assert logs.redact_url(url) == shown
