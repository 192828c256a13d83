"""The Redis that some tests run on beside Valkey: where it is, which version, and what happens where there is none."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

# Names a program that is not on the PATH.
VARIABLE: Final = "REDIS_SERVER"
# As in the README.
OLDEST: Final = 7


class RedisMissing(Exception):
    """There is no Redis to test with; says why."""


def redis_program() -> Path:
    """For a test: skips it where there is no Redis, and fails it in CI, which has to install one."""
    try:
        return find_redis()
    except RedisMissing as missing:
        reason = f"{missing}: install redis-server, or name one by {VARIABLE}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@functools.cache
def find_redis() -> Path:
    named = os.environ.get(VARIABLE)
    found = shutil.which(named or "redis-server")
    if found is None:
        raise RedisMissing(f"no {named}" if named else "no redis-server on the PATH")
    # Some distributions have Valkey under this name.
    said = version_of(Path(found))
    number = re.fullmatch(r"Redis (\d+)[.\d]*", said)
    if number is None or int(number[1]) < OLDEST:
        raise RedisMissing(f"{found} is {said}, not Redis {OLDEST} or newer")
    return Path(found)


def version_of(program: Path) -> str:
    """`Redis 7.0.15`, `Valkey 9.1.2`."""
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60).stdout
    parts = re.match(r"(\w+) server v=(\S+)", said)
    return f"{parts[1].capitalize()} {parts[2]}" if parts else f"unknown ({said.strip()})"


def tested_versions() -> str:
    """One line about what the tests run on."""
    from metadata.embedded import server_binary

    valkey = version_of(server_binary())
    try:
        return f"{valkey} and {version_of(find_redis())}"
    except RedisMissing as missing:
        return f"{valkey}; {missing}"
