"""The Java program of the README does what is said there, after what is said there, as often as one likes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.vela_process import VelaServer, environment
from tests.interop.readme import ROOT, Step, readme_steps, steps

# A first build downloads a hundred files.
LIMIT: Final = 600.0
# One after the other, while a consumer that has gone still keeps its segments; a busy machine needs more than a minute.
TIMES: Final = 2
GRACE: Final = ("--consumer-grace", "10m")
ADMIN_URL: Final = "http://127.0.0.1:8080"
# What the README does to the topic before the Java program is run: the rest of it looks, or does not end by itself.
CHANGES: Final = re.compile(r"vela (topics (create|retention|split)|produce) |curl .*/merge/")
# Maven resets colours even where it prints none.
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[VelaServer]:
    """A server that nobody else has changed topics of."""
    with VelaServer.start(tmp_path / "server", *GRACE) as server:
        yield server
        assert "Traceback" not in server.err, server.err


def type_in(step: Step, server: VelaServer) -> list[str]:
    """Run a command in a shell, as it stands there but for the ports; what it has printed."""
    done = subprocess.run(
        ["bash", "-c", step.command.replace(ADMIN_URL, server.http_url)],
        cwd=ROOT,
        env=environment(
            {
                "VELA_SERVICE_URL": server.pulsar_url,
                "VELA_ADMIN_URL": server.http_url,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            }
        ),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{step.command}\n{done.stdout}{done.stderr}\n{server.err}"
    return COLOUR.sub("", done.stdout).splitlines()


def test_commands_are_found_with_what_is_shown_below_them() -> None:
    text = "Some\n```console\n$ one \\\n    more\nsaid\n…\n$ two\n```\n```sh\n$ three\n```\n"
    assert steps(text) == [Step("one more", ("said", "…")), Step("two", ())]
    assert steps(text)[0].shown_in_full == ("said",)


def test_tour_prints_the_orders_of_each_customer_in_their_order(own_server: VelaServer, java_class_path: str) -> None:
    told = readme_steps()
    [at] = [number for number, step in enumerate(told) if step.command.startswith("mvn ")]
    prepared = [step for step in told[:at] if CHANGES.search(step.command)]
    assert len(prepared) >= 6, prepared
    for step in prepared:
        if "curl" not in step.command or "204" in " ".join(step.shown):
            type_in(step, own_server)
    for _ in range(TIMES):
        printed = type_in(told[at], own_server)
        assert set(told[at].shown_in_full) <= set(printed)
        of_customer: dict[str, list[int]] = {}
        for line in printed:
            found = re.fullmatch("([a-z]+): order ([0-9]+)", line)
            assert found is not None, printed
            of_customer.setdefault(found[1], []).append(int(found[2]))
        assert of_customer == {"anna": [0, 3, 6, 9], "ben": [1, 4, 7], "carla": [2, 5, 8]}, own_server.err
