"""The Java program of the README does what is said there."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaAdmin

ROOT: Final = Path(__file__).parents[2]
LIMIT: Final = 600.0
# Maven resets colours even where it prints none.
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def test_tour_prints_the_orders_of_each_customer_in_their_order(
    server: VelaServer, admin: JavaAdmin, java_class_path: str
) -> None:
    admin("create", topic="topic://public/default/orders", count=2)
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(ROOT / "examples" / "java"), "compile", "exec:java"],
        env=os.environ | {"VELA_SERVICE_URL": server.pulsar_url},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    of_customer: dict[str, list[int]] = {}
    for customer, order in re.findall("([a-z]+): order ([0-9]+)", COLOUR.sub("", done.stdout)):
        of_customer.setdefault(customer, []).append(int(order))
    assert of_customer == {"anna": [0, 3, 6, 9], "ben": [1, 4, 7], "carla": [2, 5, 8]}
