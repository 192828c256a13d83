"""Store URLs: all forms that are understood, and a sentence for each that is not."""

import pytest

from metadata.errors import BadStoreUrl
from metadata.store import open_store
from metadata.urls import Endpoint, Kind, StoreUrl
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import TlsProxy
from tests.support.valkeys import Replicated

TOPIC = TopicName.parse("topic://public/default/orders")


@pytest.mark.parametrize(
    ("text", "kind", "endpoints", "db", "tls"),
    [
        ("redis://h", Kind.SINGLE, [("h", 6379)], 0, False),
        ("redis://h:7000/3", Kind.SINGLE, [("h", 7000)], 3, False),
        ("redis://h:7000?db=4", Kind.SINGLE, [("h", 7000)], 4, False),
        ("rediss://[::1]:7000/0", Kind.SINGLE, [("::1", 7000)], 0, True),
        ("unix:///run/a%20b/s?db=2", Kind.SINGLE, [("/run/a b/s", 0)], 2, False),
        ("redis+sentinel://a,b:27000/mymaster/5", Kind.SENTINEL, [("a", 26379), ("b", 27000)], 5, False),
        ("rediss+sentinel://a/mymaster", Kind.SENTINEL, [("a", 26379)], 0, True),
        ("redis+cluster://a:1,b:2,c", Kind.CLUSTER, [("a", 1), ("b", 2), ("c", 6379)], 0, False),
        ("rediss+cluster://a:1", Kind.CLUSTER, [("a", 1)], 0, True),
    ],
)
def test_url_forms(text: str, kind: Kind, endpoints: list[tuple[str, int]], db: int, tls: bool) -> None:
    url = StoreUrl.parse(text)
    assert (url.kind, url.db, url.tls) == (kind, db, tls)
    assert url.endpoints == tuple(Endpoint(*endpoint) for endpoint in endpoints)


def test_login_is_decoded_and_never_shown() -> None:
    url = StoreUrl.parse("redis://vela:p%40ss%2Fword@h:1/2")
    assert (url.username, url.password) == ("vela", "p@ss/word")
    assert str(url) == "redis://vela:***@h:1/2"
    assert "p@ss" not in repr(url)
    assert str(StoreUrl.parse("redis+sentinel://:secret@h:1/main")) == "redis+sentinel://:***@h:1/main"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://h", "scheme 'http' is unknown"),
        ("redis+other://h", "scheme 'redis+other' is unknown"),
        ("localhost:6379", "is unknown"),
        ("redis://h/x", "database number 'x'"),
        ("redis://h/1/2", "more path"),
        ("redis://h:port/1", "host and port"),
        ("redis://h:99999/1", "host and port"),
        ("redis+sentinel://h", "name of the primary"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis://h?dbb=1", "option 'dbb' is unknown"),
        ("unix://?db=1", "names the socket"),
    ],
)
def test_a_url_that_is_not_understood_says_why(text: str, words: str) -> None:
    with pytest.raises(BadStoreUrl, match=words.replace("+", r"\+")):
        StoreUrl.parse(text)


async def test_password_user_and_database_are_used(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.command("ACL", "SETUSER", "vela", "on", ">p@ss", "~*", "&*", "+@all")
    host, port = fresh_valkey.address
    async with open_store(f"redis://vela:p%40ss@{host}:{port}/3") as store:
        await store.create(TOPIC, b"0", [])
    assert "db3" in fresh_valkey.info("keyspace")
    assert "db0" not in fresh_valkey.info("keyspace")


async def test_a_unix_socket_is_used(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.unix_url) as store:
        await store.create(TOPIC, b"0", [])
        assert await store.get(TOPIC) is not None


async def test_tls_is_used_both_ways(valkey: ValkeyProcess) -> None:
    async with TlsProxy.open(*valkey.address) as proxy, open_store(proxy.url) as store:
        large = b"x" * 3_000_000
        await store.create(TOPIC, large, [])
        stored = await store.get(TOPIC)
        assert stored is not None
        assert stored.value == large


async def test_an_untrusted_certificate_is_refused_at_once(valkey: ValkeyProcess) -> None:
    async with TlsProxy.open(*valkey.address) as proxy:
        trusting_nobody = proxy.url.split("?")[0]
        with pytest.raises(Exception, match="certificate"):
            async with open_store(trusting_nobody):
                pass


async def test_a_sentinel_that_does_not_know_the_name_is_said(fresh_replicated: Replicated) -> None:
    url = fresh_replicated.url.rsplit("/", 1)[0] + "/unheard-of"
    with pytest.raises(Exception, match="unheard-of"):
        async with open_store(url):
            pass
