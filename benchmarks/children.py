"""A child process that works off requests one by one, and the parent's end of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.figures import MeasurementFailed

ANSWER_LIMIT = 60.0
_END_LIMIT = 5.0


class Child:
    """The parent's end. What the child raises is raised here."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid = pid
        self._pipe = pipe

    def ask(self, *request: Any) -> Any:
        self.tell(*request)
        return self.answer()

    def tell(self, *request: Any) -> None:
        self._pipe.send(request)

    def answer(self, limit: float = ANSWER_LIMIT) -> Any:
        if not self._pipe.poll(limit):
            raise MeasurementFailed(f"a child process gave no answer for {limit:g} s")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise MeasurementFailed("a child process ended early") from None
        if isinstance(answer, Exception):
            raise MeasurementFailed(f"a child process failed: {answer!r}") from answer
        return answer


@contextmanager
def child(main: Callable[[Connection], None]) -> Iterator[Child]:
    """Run `main` in a new interpreter. It ends when its pipe does, so it cannot outlive this process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(main, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield Child(process.pid, ours)
    finally:
        ours.close()
        process.join(_END_LIMIT)
        process.kill()
        process.join()


def _run(main: Callable[[Connection], None], pipe: Connection) -> None:
    try:
        main(pipe)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass  # the parent has ended, or is about to
    except Exception as error:
        pipe.send(error)
