"""A session at the command line against a running server: each command once as it should go, and as it should not."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.e2e.vela_process import Outcome, VelaServer, run_vela
from tests.gateway.vela_command import closed_port
from tests.support.ports import HOST
from tests.support.processes import ValkeyProcess

pytestmark = pytest.mark.slow


def test_topic_from_its_creation_to_its_end(server: VelaServer, topic: str) -> None:
    name = f"topic://public/default/{topic}"

    def vela(*arguments: str) -> str:
        outcome = run_vela("topics", *arguments, variables=server.for_clients)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    assert vela("create", topic, "--segments", "2", "-p", "team=blue") == f"Created {name} with 2 segments.\n"
    assert name in vela("list").splitlines()
    assert vela("list", "public/default", "-p", "team=blue").splitlines() == [name]
    assert vela("split", topic, "0") == f"Split segment 0 of {name} into 2 and 3.\n"
    assert vela("merge", name, "3", "1") == f"Merged segments 3 and 1 of {name} into 4.\n"

    shown = vela("get", f"public/default/{topic}").splitlines()
    assert [line.strip() for line in shown[:3]] == [
        name,
        "epoch 2, 2 active and 3 sealed segments",
        "team = blue",
    ]
    assert [line.split()[:4] for line in shown[4:]] == [
        ["0", "0000-7fff", "50.00%", "sealed"],
        ["1", "8000-ffff", "50.00%", "sealed"],
        ["2", "0000-3fff", "25.00%", "active"],
        ["3", "4000-7fff", "25.00%", "sealed"],
        ["4", "4000-ffff", "75.00%", "active"],
    ]
    record = json.loads(vela("get", topic, "--json"))
    assert (record["epoch"], record["properties"]) == (2, {"team": "blue"})

    assert vela("delete", topic) == f"Deleted {name}.\n"
    assert name not in vela("list").splitlines()


def test_graph_is_drawn_in_every_form(server: VelaServer, topic: str) -> None:
    server.create(topic, segments=2)
    server.split(topic, 0)

    def drawn(*form: str) -> str:
        outcome = run_vela("topics", "graph", topic, *form, variables=server.for_clients)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    text = drawn()
    assert all(segment in text for segment in ("0000-7fff", "8000-ffff", "0000-3fff", "4000-7fff"))
    dot = drawn("--dot")
    assert dot.startswith("digraph")
    assert dot.count("->") == 2
    picture = ElementTree.fromstring(drawn("--svg"))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    mermaid = drawn("--mermaid")
    assert mermaid.split(maxsplit=1)[0] in {"flowchart", "graph"}
    assert mermaid.count("-->") == 2


MISTAKES = {
    "missing-topic": (("topics", "get", "no-such-topic"), "topic not found"),
    "delete-of-a-missing-topic": (("topics", "delete", "no-such-topic"), "topic not found"),
    "split-of-a-missing-segment": (("topics", "split", "TOPIC", "99"), "99"),
    "merge-of-strangers": (("topics", "merge", "TOPIC", "0", "2"), "adjacent"),
    "existing-topic": (("topics", "create", "TOPIC"), "exists"),
    "too-many-segments": (("topics", "create", "TOPIC-2", "-s", "5000"), "limit is 1024"),
    "half-a-name": (("topics", "get", "default/orders"), "names no topic"),
    "impossible-name": (("topics", "create", "topic://a b/c/d"), "is not a tenant"),
    "impossible-namespace": (("topics", "list", "public"), "tenant/namespace"),
    "watch-of-a-missing-topic": (("watch", "topic", "no-such-topic"), "no-such-topic"),
}


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_answered_with_one_sentence(
    server: VelaServer, topic: str, arguments: tuple[str, ...], sentence: str
) -> None:
    server.create(topic, segments=3)
    named = [argument.replace("TOPIC", topic) for argument in arguments]
    outcome = run_vela(*named, variables=server.for_clients)
    assert_refused(outcome, sentence)
    assert server.epoch(topic) == 0


def assert_refused(outcome: Outcome, sentence: str) -> None:
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.sentence.startswith("vela: ")
    assert sentence.lower() in outcome.sentence.lower()


@pytest.mark.parametrize("arguments", [("topics", "list"), ("watch", "topic", "orders")])
def test_server_that_is_not_there_is_one_sentence(arguments: tuple[str, ...]) -> None:
    port = closed_port()
    nowhere = {"VELA_ADMIN_URL": f"http://{HOST}:{port}", "VELA_SERVICE_URL": f"pulsar://{HOST}:{port}"}
    assert_refused(run_vela(*arguments, variables=nowhere), f"{HOST}:{port}")


@pytest.mark.parametrize("arguments", [("topics", "list"), ("watch", "topic", "orders")])
def test_ports_mixed_up_are_one_sentence(server: VelaServer, arguments: tuple[str, ...]) -> None:
    mixed_up = {
        "VELA_ADMIN_URL": f"http://{HOST}:{server.port}",
        "VELA_SERVICE_URL": f"pulsar://{HOST}:{server.http_port}",
    }
    assert_refused(run_vela(*arguments, variables=mixed_up), HOST)


def test_doctor_finds_a_healthy_server_healthy(tmp_path: Path, server: VelaServer, fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.command("CONFIG", "SET", "notify-keyspace-events", "Kt")
    outcome = run_vela("doctor", "--json", "--store", fresh_valkey.url, cwd=tmp_path, variables=server.for_clients)
    findings = [json.loads(line) for line in outcome.out.splitlines()]
    assert (outcome.code, outcome.err) == (0, ""), findings
    assert not [finding for finding in findings if finding["status"] == "fail"]
    assert len(findings) > 5


def test_doctor_names_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    port = closed_port()
    nowhere = {"VELA_ADMIN_URL": f"http://{HOST}:{port}", "VELA_SERVICE_URL": f"pulsar://{HOST}:{port}"}
    store = f"redis://u:sekret@{HOST}:{port}/0"
    outcome = run_vela("doctor", "--json", "--store", store, cwd=tmp_path, variables=nowhere)
    findings = [json.loads(line) for line in outcome.out.splitlines()]
    assert (outcome.code, outcome.err) == (1, "")
    assert [finding["check"] for finding in findings if finding["status"] == "fail"] == ["store reachable"]
    # The server is not there either, which may be meant; the advice says what to do if not.
    troubles = [finding for finding in findings if finding["status"] != "ok"]
    assert len(troubles) >= 3
    assert all(finding["advice"] for finding in troubles)
    assert "sekret" not in outcome.out


def test_settings_are_shown_with_their_origin_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "vela.toml").write_text('keep_alive = "7s"\n')
    outcome = run_vela(
        *("config", "show", "--config", "vela.toml", "--stall-limit", "9s"),
        cwd=tmp_path,
        variables={"VELA_STORE": "redis://u:sekret@h:1/2"},
    )
    assert (outcome.code, outcome.err) == (0, "")
    rows = [line.rstrip().split(maxsplit=2) for line in outcome.out.splitlines()]
    assert ["keep_alive", "7s", "file vela.toml"] in rows
    assert ["stall_limit", "9s", "flag --stall-limit"] in rows
    assert ["store", "redis://u:***@h:1/2", "environment VELA_STORE"] in rows
    assert "sekret" not in outcome.out
