"""Durations, sizes and addresses read and write as people do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quantities import (
    HostPort,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("3s", 3.0), ("5m", 300.0), ("1h", 3600.0), ("1.5s", 1.5), ("0ms", 0.0)]
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "3", "s", "3 s", "-3s", "3S", "3d", "1e3s", "٣s", "3s3s", "1.s", ".5s", "9" * 400 + "s"]
)
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**9))
def test_durations_survive_being_shown(milliseconds: int) -> None:
    seconds = milliseconds / 1_000
    assert parse_duration(show_duration(seconds)) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0.05, "50ms"), (90, "90s"), (120, "2m"), (3600, "1h"), (0, "0ms")])
def test_durations_are_shown_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("512B", 512), ("64KB", 65_536), ("5MB", 5_242_880), ("1kib", 1024), ("1 GB", 1 << 30)],
)
def test_sizes_count_in_1024s(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "-1KB", "1.5MB", "1TB", "0x10", "1_000", "1  MB"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 40))
def test_sizes_survive_being_shown(size: int) -> None:
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:6650", "127.0.0.1", 6650), ("localhost:0", "localhost", 0), ("[::1]:8080", "::1", 8080)],
)
def test_addresses_survive_being_shown(text: str, host: str, port: int) -> None:
    assert HostPort.parse(text) == HostPort(host, port)
    assert str(HostPort(host, port)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":6650",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "::1:80",
        "[host]:80",
        "a b:80",
        "[]:1",
        "http://h:1",
    ],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        HostPort.parse(text)
