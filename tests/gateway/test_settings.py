"""Settings: precedence, where values came from, and what is said about bad ones."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from gateway import settings_page
from gateway.quantities import HostPort
from gateway.settings import ROWS, Settings, SettingsError, load, unknown_variables

ROOT = Path(__file__).parents[2]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(flags: dict[str, str | bool | None], environ: dict[str, str], config: str | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ, config)
    return str(caught.value)


def test_defaults_are_what_the_outside_contract_says() -> None:
    settings = load({}, {})
    assert settings == Settings()
    assert settings.listen == HostPort("127.0.0.1", 6650)
    assert settings.http == HostPort("127.0.0.1", 8080)
    assert settings.uses_embedded_store
    assert settings.data_dir == Path("vela-data")
    assert settings.auto_create
    assert settings.probe_interval == 3.0
    assert settings.max_message_size == 5_242_880
    assert {settings.origin(row.name) for row in ROWS} == {"default"}


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path / "vela.toml", 'probe_interval = "1s"\nkeep_alive = "2s"\nstall_limit = "3s"\n')
    environ = {"VELA_PROBE_INTERVAL": "10s", "VELA_KEEP_ALIVE": "20s"}
    settings = load({"probe_interval": "100s", "keep_alive": None}, environ, file)
    assert (settings.probe_interval, settings.keep_alive, settings.stall_limit) == (100.0, 20.0, 3.0)
    assert settings.deletion_notice == 5.0
    assert settings.origin("probe_interval") == "flag --probe-interval"
    assert settings.origin("keep_alive") == "environment VELA_KEEP_ALIVE"
    assert settings.origin("stall_limit") == f"file {file}"
    assert settings.origin("deletion_notice") == "default"


def test_the_file_is_named_by_flag_or_environment_and_the_flag_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one.toml", "max_segments = 1")
    two = write(tmp_path / "two.toml", "max_segments = 2")
    assert load({}, {"VELA_CONFIG": one}).max_segments == 1
    assert load({}, {"VELA_CONFIG": one}, two).max_segments == 2


def test_an_empty_variable_counts_as_absent() -> None:
    assert load({}, {"VELA_STORE": "", "VELA_CONFIG": ""}) == Settings()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_setting_can_be_given_in_every_way(row: object, tmp_path: Path) -> None:
    from gateway.settings import Setting

    assert isinstance(row, Setting)
    unset = {
        "advertise": "pulsar://broker:6650",
        "advertise_http": "https://broker:443",
        "admin_hosts": "vela.example,::1,*",
        "record": "./trace",
        "record_anonymise_key": "/etc/vela/key",
    }
    text = row.default or unset[row.name]
    value = row.parse(text, "here")
    file = write(tmp_path / "vela.toml", f'{row.name} = "{text}"')
    for settings in (load({row.name: text}, {}), load({}, {row.variable: text}), load({}, {}, file)):
        assert getattr(settings, row.name) == value
        assert settings.origin(row.name) != "default"
    assert row.show(value) == text


def test_every_field_is_a_row_with_a_help_sentence() -> None:
    assert [row.name for row in ROWS] == [column.name for column in fields(Settings)][:-1]
    for row in ROWS:
        assert row.help.endswith("."), row.name
        assert row.default is not None or row.unset, row.name


@pytest.mark.parametrize("word", ["false", "no", "OFF", "0"])
def test_a_switch_can_be_turned_off_in_many_words(word: str) -> None:
    assert load({}, {"VELA_AUTO_CREATE": word}).auto_create is False


def test_a_switch_given_as_a_flag_says_so() -> None:
    settings = load({"auto_create": False}, {})
    assert settings.auto_create is False
    assert settings.origin("auto_create") == "flag --no-auto-create"


def test_toml_types_are_taken_where_they_fit(tmp_path: Path) -> None:
    file = write(tmp_path / "vela.toml", "auto_create = false\nmax_segments = 7\nmax_body = 2048\n")
    settings = load({}, {}, file)
    assert (settings.auto_create, settings.max_segments, settings.max_body) == (False, 7, 2048)


@pytest.mark.parametrize(
    "line",
    [
        "probe_interval = 3",
        "max_segments = true",
        "max_segments = 1.5",
        "data_dir = true",
        "store = 5",
        "auto_create = 1",
        "listen = ['a:1']",
        "log_level = {a = 1}",
    ],
)
def test_toml_types_that_do_not_fit_are_refused(line: str, tmp_path: Path) -> None:
    file = write(tmp_path / "vela.toml", line)
    sentence = refusal({}, {}, file)
    assert sentence.startswith(line.partition(" ")[0])
    assert f"(from file {file})" in sentence


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("listen", "6650", "HOST:PORT"),
        ("listen", "host:99999", "HOST:PORT"),
        ("store", "mysql://x", "embedded, or a URL that starts with redis://"),
        ("store", "redis://", "embedded, or a URL"),
        ("data_dir", "~no-such-user-here/x", "the path of a directory"),
        ("advertise", "http://x:1", "pulsar://HOST:PORT"),
        ("advertise", "pulsar://x", "pulsar://HOST:PORT"),
        ("advertise", "pulsar://x:1/path", "pulsar://HOST:PORT"),
        ("advertise", "pulsar://x:notaport", "pulsar://HOST:PORT"),
        ("advertise", "pulsar://a\nb:1", "pulsar://HOST:PORT"),
        ("advertise_http", "pulsar://x:1", "http://HOST:PORT"),
        ("probe_interval", "3", "a duration such as 50ms, 3s, 5m or 1h, from 10ms to 1h"),
        ("probe_interval", "0s", "a duration such as 50ms, 3s, 5m or 1h, from 10ms to 1h"),
        ("probe_interval", "2h", "a duration such as 50ms, 3s, 5m or 1h, from 10ms to 1h"),
        ("max_message_size", "1KB", "a size such as 512B, 64KB or 1MB, from 16KB to 1GB"),
        ("max_segments", "0", "a whole number from 1 to 65536"),
        ("max_segments", "1e3", "a whole number from 1 to 65536"),
        ("max_segments", "9" * 5000, "a whole number from 1 to 65536"),
        ("auto_create", "maybe", "true or false"),
        ("log_level", "verbose", "one of debug, info, warning, error"),
        ("log_format", "xml", "one of text, json"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_its_origin_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    variable = f"VELA_{name.upper()}"
    sentence = refusal({}, {variable: text})
    assert sentence.startswith(f"{name} cannot be ")
    assert f"(from environment {variable})" in sentence
    assert f"give {allowed}" in sentence
    assert sentence.isprintable()
    assert len(sentence) < 350
    flag = refusal({name: text}, {})
    assert f"(from flag --{name.replace('_', '-')})" in flag


def test_hosts_may_be_a_list_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "vela.toml", 'admin_hosts = ["Vela.Example.", "[::1]"]')
    assert load({}, {}, file).admin_hosts == ("vela.example", "::1")


@pytest.mark.parametrize("value", ["", ",", "a b", "http://a", "a:80", "a/b", "*.example", "[::1", "1::2::3", "ü"])
def test_what_is_no_list_of_hosts_is_refused(value: str) -> None:
    assert "admin_hosts cannot be" in refusal({"admin_hosts": value}, {})


def test_an_unknown_key_is_refused_with_the_likely_one(tmp_path: Path) -> None:
    file = write(tmp_path / "vela.toml", 'probe_intervall = "3s"')
    assert refusal({}, {}, file) == f'Unknown key "probe_intervall" in file {file}: did you mean probe_interval?'
    file = write(tmp_path / "vela.toml", "[server]\nx = 1")
    assert refusal({}, {}, file).startswith(
        f'Unknown key "server" in file {file}: the keys are ack_replicas, admin_hosts, '
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "cannot be read: No such file or directory."),
        (lambda path: path.mkdir(), "cannot be read: Is a directory."),
        (lambda path: path.write_text("listen = "), "is not valid TOML: "),
        (lambda path: path.write_bytes(b"\xff"), "is not valid TOML: "),
    ],
    ids=["missing", "directory", "broken", "not text"],
)
def test_an_unusable_file_is_one_sentence(make: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / "vela.toml"
    assert callable(make)
    make(path)
    sentence = refusal({}, {}, str(path))
    assert sentence.startswith(f"The settings file {path} ")
    assert says in sentence
    assert "\n" not in sentence


def test_a_store_password_is_never_shown() -> None:
    url = "redis://vela:s3cret@store:6379/0"
    settings = load({"store": url}, {})
    assert settings.store == url
    shown = {row.name: text for row, text, _ in settings.shown()}
    assert shown["store"] == "redis://vela:***@store:6379/0"
    assert "s3cret" not in refusal({"store": "mysql://vela:s3cret@store"}, {})


def test_variables_that_are_no_settings_are_named_with_the_likely_one() -> None:
    environ = {"VELA_PROBE_INTERVALL": "1s", "VELA_PORT_80_TCP_ADDR": "x", "VELA_ADMIN_URL": "x", "PATH": "x"}
    assert unknown_variables(environ) == [
        ("VELA_PORT_80_TCP_ADDR", None),
        ("VELA_PROBE_INTERVALL", "VELA_PROBE_INTERVAL"),
    ]


def test_settings_cannot_be_changed_after_the_fact() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().max_segments = 3  # type: ignore[misc]  # that is the point


def test_the_settings_page_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page.page(), "run `make docs`"
