"""A line about what happens all the time."""

import logging

import pytest
import trio
import trio.testing

from gateway.seldom import INTERVAL, SeldomLine

log = logging.getLogger(__name__)


async def test_line_is_written_once_a_minute_with_how_many_more_followed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    line = SeldomLine(log, logging.ERROR)
    for _ in range(10):
        line.say("trouble")
        line.over("calm")
    assert caplog.messages == ["trouble"]
    await trio.sleep(INTERVAL)
    line.say("trouble")
    assert caplog.messages[1:] == ["trouble (9 more since the last line about it)"]
    await trio.sleep(INTERVAL)
    line.say("trouble")
    assert caplog.messages[2:] == ["trouble"]


async def test_what_is_untold_is_told_when_it_is_over(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    line = SeldomLine(log, logging.ERROR)
    line.say("trouble")
    line.say("trouble")
    await trio.sleep(INTERVAL)
    line.over("calm")
    line.over("calm")
    assert caplog.messages == ["trouble", "calm (1 more since the last line about it)"]
