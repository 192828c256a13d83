"""Which service URLs are accepted, and what is said about the others."""

import pytest

from protocol.client.addresses import ServiceAddress
from protocol.client.errors import BadServiceUrl


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("pulsar://127.0.0.1:6651", "127.0.0.1", 6651),
        ("pulsar://broker.example", "broker.example", 6650),
        ("pulsar://broker:6650/", "broker", 6650),
        ("pulsar://[::1]:7000", "::1", 7000),
    ],
)
def test_a_url_names_host_and_port(url: str, host: str, port: int) -> None:
    assert ServiceAddress.parse(url) == ServiceAddress(host, port)


def test_an_address_is_written_as_the_url_it_was_read_from() -> None:
    for url in ("pulsar://127.0.0.1:6651", "pulsar://[::1]:7000"):
        assert str(ServiceAddress.parse(url)) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:6650", "http://127.0.0.1:8080", "pulsar+ssl://host:6651", "pulsar://", "pulsar://:6650",
        "pulsar://host:port", "pulsar://host:0", "pulsar://host:65536", "pulsar://a:6650,b:6650", "pulsar://a,b",
        "pulsar://host:6650/path", "pulsar://host?q", "pulsar://host#f", "pulsar://me:secret@host", "pulsar://[::1",
        "pulsar://ho st", "pulsar://host\n:6650", "pulsar://ho\0st",
    ],
)  # fmt: skip
def test_an_unusable_url_is_refused_with_an_example_of_a_good_one(url: str) -> None:
    with pytest.raises(BadServiceUrl, match=r"give one host and port, as in pulsar://127\.0\.0\.1:6650"):
        ServiceAddress.parse(url)
