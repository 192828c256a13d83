"""`--help` of every command, versions, usage errors, and what happens to failures nobody thought of."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from gateway.cli import main as cli
from gateway.cli.failures import alone, sentence
from gateway.settings import ROWS
from tests.gateway.vela_command import vela


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL_COMMANDS = dict(commands(typer.main.get_command(cli.app)))


CONTRACT = {
    "": "serve doctor nodes produce consume",
    "config": "show",
    "topics": "create list get delete split merge graph set-properties stats consumers retention partitions migrate",
    "subscriptions": "list create delete seek skip-all",
    "schemas": "get list upload check delete",
    "namespaces": "list create delete retention",
    "watch": "topic namespace",
    "trace": "record info cat seal synth analyze replay",
}
# These become another process, whose help is shown; tests/gateway/test_cli_trace.py looks at that.
HANDED_OVER = {("trace", "synth"), ("trace", "analyze"), ("trace", "replay")}


def test_the_commands_are_those_of_the_outside_contract() -> None:
    leaves = {" ".join(path) for path, command in ALL_COMMANDS.items() if not getattr(command, "commands", None)}
    assert leaves == {f"{group} {verb}".strip() for group, verbs in CONTRACT.items() for verb in verbs.split()}


def test_the_command_line_starts_without_what_only_some_commands_need() -> None:
    heavy = "{'httpx', 'litestar', 'msgspec', 'pyarrow', 'redis', 'rich', 'trio'}"
    code = f"import sys, gateway.cli.main; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("path", [path for path in ALL_COMMANDS if path not in HANDED_OVER], ids=" ".join)
def test_every_command_and_every_option_of_it_has_a_help_text(path: tuple[str, ...]) -> None:
    command = ALL_COMMANDS[path]
    assert getattr(command, "help", None)
    for parameter in getattr(command, "params", ()):
        assert getattr(parameter, "help", None), parameter.name
    outcome = vela(*path, "--help")
    assert outcome.code == 0
    assert "Usage: vela" in outcome.out


def test_serve_has_a_flag_for_every_setting_and_says_default_and_variable() -> None:
    # Rich folds long lines; compare without white space and box lines.
    text = "".join(vela("serve", "--help", COLUMNS="300").out.split()).replace("│", "")
    for row in ROWS:
        assert row.flag in text
        assert f"[env:{row.variable},default:{row.default_text.replace(' ', '')}]" in text
    assert "--config" in text


def test_no_command_at_all_shows_the_help() -> None:
    assert "Usage: vela" in vela().out


def test_version_is_printed() -> None:
    assert vela("--version").out.startswith("vela 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("topics", "create"),
        ("topics", "create", "t", "--segments", "0"),
        ("topics", "create", "t", "--property", "novalue"),
        ("topics", "create", "t", "--property", "a=1", "-p", "a=2"),
        ("topics", "split", "t", "x"),
        ("topics", "split", "t", "-1"),
        ("topics", "graph", "t", "--dot", "--svg"),
        ("topics", "retention", "t", "--minutes", "5", "--clear"),
        ("topics", "retention", "t", "--minutes", "-2"),
        ("namespaces", "retention", "t/n", "--minutes", "5", "--clear"),
        ("schemas", "get", "t", "--version", "-1"),
        ("schemas", "upload", "t"),
        ("subscriptions", "create", "t"),
        ("subscriptions", "create", "t", "s", "--type", "checkpoint"),
        ("subscriptions", "seek", "t", "s"),
        ("subscriptions", "seek", "t", "s", "--to", "1h", "--timestamp", "5"),
        ("subscriptions", "seek", "t", "s", "--to", "yesterday"),
        ("subscriptions", "seek", "t", "s", "--timestamp", "-1"),
        ("subscriptions", "seek", "t", "s", "--timestamp", "253402300800000"),
        ("produce", "t"),
        ("produce", "t", "x", "--stdin"),
        ("produce", "t", "x", "--separator", ""),
        ("produce", "t", "x", "--count", "0"),
        ("produce", "t", "x", "--rate", "0"),
        ("consume", "t"),
        ("consume", "t", "-s", "s", "--from", "yesterday"),
        ("consume", "t", "-s", "s", "--timeout", "5"),
        ("trace", "cat"),
        ("trace", "info", "x", "--no-such-flag"),
        ("serve", "--no-such-flag"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    outcome = vela(*arguments)
    assert outcome.code == 2
    assert "Usage: vela" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: /x."),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer."),
        (
            ExceptionGroup("", [ExceptionGroup("", [OSError(28, "No space left on device")])]),
            "No space left on device.",
        ),
    ],
)
def test_failures_of_the_system_are_one_sentence(error: Exception, text: str) -> None:
    assert sentence(alone(error)) == text


def test_a_defect_is_one_sentence_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("left\nover")

    monkeypatch.setattr("gateway.settings.Settings.shown", broken)
    outcome = vela("config", "show", "--json")
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("vela: LookupError in test_cli_help.py line ")
    assert outcome.err.endswith(": left over. This is a defect of Vela; please report it.\n")
