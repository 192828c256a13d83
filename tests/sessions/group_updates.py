"""Names for many topics, a window that passes, and what a peer of a staged group was told since the last look."""

from __future__ import annotations

from trio.testing import MockClock

from tests.sessions.staged_groups import PREFIX, WINDOW, Peer, settle


def names(count: int, start: int = 0) -> list[str]:
    return [f"topic-{number}" for number in range(start, start + count)]


def diff_of(peer: Peer) -> tuple[list[str], list[str]]:
    """The only frame that came since the last look: what was added, what was removed."""
    [update] = peer.take()
    assert update.WhichOneof("event") == "diff"
    return (
        sorted(name.removeprefix(PREFIX) for name in update.diff.added),
        sorted(name.removeprefix(PREFIX) for name in update.diff.removed),
    )


async def pass_window(clock: MockClock) -> None:
    """All that can happen now has happened, and then all that the end of the window leads to."""
    await settle()
    clock.jump(WINDOW)
    await settle()


async def read_in_window(clock: MockClock) -> None:
    """Changes that came right after an update have been read, and the window in which they are gathered is not over."""
    await settle()
    clock.jump(0.9 * WINDOW)
    await settle()
