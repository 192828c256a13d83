"""The attacker's process: prepares an attack, carries it out within its time, and leaves without a word."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.hostile.attacks import ATTACKS
from benchmarks.hostile.peers import Account, Gone, Over
from benchmarks.hostile.scenes import Scene
from benchmarks.readers import Address

PREPARATION_LIMIT = 45.0
# Behind everybody else: attackers compute on machines of their own.
_NICENESS = 10
_MARGIN = 15.0


@dataclass(frozen=True, slots=True)
class Deed:
    """How long the attack took, leaving included, and what came of it."""

    seconds: float
    account: Account
    # Why it ended early, if it did.
    ended: str


class Attacker:
    """The parent's end."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def prepare(self, name: str, pulsar: Address, http: Address, quick: bool) -> str:
        """Up to where the attack begins; why it is no further, if it is not."""
        self._process.tell("prepare", name, pulsar, http, quick)
        refused = self._process.answer(PREPARATION_LIMIT + _MARGIN)
        assert isinstance(refused, str)
        return refused

    def attack(self, seconds: float) -> Deed:
        self._process.tell("attack", seconds)
        deed = self._process.answer(seconds + PREPARATION_LIMIT)
        assert isinstance(deed, Deed)
        return deed


@contextmanager
def attacker() -> Iterator[Attacker]:
    with child(_main) as process:
        yield Attacker(process)


def _main(pipe: Connection) -> None:
    os.nice(_NICENESS)
    number = 0
    while True:
        match pipe.recv():
            case ("prepare", name, pulsar, http, quick):
                number += 1
                scene = Scene(pulsar, http, f"hostile{number}", quick=quick)
                scene.account.ends_at = time.monotonic() + PREPARATION_LIMIT
                acting = ATTACKS[name].act(scene)
                pipe.send(_step(acting, "it took too long"))
            case ("attack", seconds):
                scene.account = _begun(scene.account, seconds)
                started_at = time.monotonic()
                ended = _step(acting, "")
                scene.close()
                pipe.send(Deed(time.monotonic() - started_at, scene.account, ended))


def _begun(account: Account, seconds: float) -> Account:
    """The same object, which the connections hold, counting anew."""
    account.ends_at = time.monotonic() + seconds
    account.connections = account.closed = account.sent = 0
    account.answers.clear()
    return account


def _step(acting: Iterator[None], over: str) -> str:
    """To the next `yield`, or to the end: why it is no further, which is `over` when its time was up."""
    try:
        with suppress(StopIteration):
            next(acting)
    except Over:
        return over
    except Gone:
        return "the server closed its connection"
    except (OSError, HTTPException) as error:
        return f"the server did not go along: {error!r}"
    return ""
