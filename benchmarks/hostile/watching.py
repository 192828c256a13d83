"""Attacks of those who watch: layouts, namespaces, lists of topics, registered consumers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.hostile.commands import LONG, frame, joined
from benchmarks.hostile.peers import PING, Peer
from benchmarks.hostile.scenes import SCALABLE, Attack, Scene
from benchmarks.readers import subscribe_message, unsubscribe_message, watch_message
from protocol.wire.pulsar_api_pb2 import KeyValue

_NAMESPACE = "public/default"


def _list(number: int, pattern: str) -> bytes:
    return frame("WATCH_TOPIC_LIST", request_id=number, watcher_id=number, namespace=_NAMESPACE, topics_pattern=pattern)


def _watch(number: int, *filters: tuple[str, str], namespace: str = _NAMESPACE) -> bytes:
    pairs = [KeyValue(key=key, value=value) for key, value in filters]
    return frame("WATCH_SCALABLE_TOPICS", watch_id=number, namespace=namespace, property_filters=pairs)


def patterns(scene: Scene) -> Iterator[None]:
    scene.logs()
    peer = scene.peer()
    frames = [_list(at, f"{_NAMESPACE}/.*-partition-.*{at}") for at in range(scene.many(5_000))]
    yield
    peer.ask(joined(frames), len(frames))


def patterns_beside_changes(scene: Scene) -> Iterator[None]:
    """Each change is matched against every pattern."""
    peer = scene.peer()
    frames = [_list(at, f"{_NAMESPACE}/.*-made-.*{at}") for at in range(scene.many(5_000))]
    peer.ask(joined(frames), len(frames))
    yield
    number = 0
    while scene.goes_on:
        number += 1
        scene.partitioned(f"made-{number}", scene.many(500))


def costly_patterns(scene: Scene) -> Iterator[None]:
    scene.logs()
    peer = scene.peer()
    texts = [
        "((((.{1,9}){1,9}){1,9}){1,9})x{at}",
        "(.*){{1,30}}{at}",
        "(x+x+)+{at}y",
        ".{{1,900}}{at}",
        "((a{{0,30}}){{0,30}}){at}",
    ]
    frames = [
        _list(at, texts[at % len(texts)].replace("{{", "{").replace("}}", "}").replace("{at}", str(at)))
        for at in range(scene.many(1_000))
    ]
    yield
    peer.ask(joined(frames), len(frames))


def lists(scene: Scene) -> Iterator[None]:
    scene.logs()
    peer = scene.peer()
    some = joined(
        frame("GET_TOPICS_OF_NAMESPACE", request_id=at, namespace=_NAMESPACE, topics_pattern=f"{_NAMESPACE}/.*{at}.*")
        for at in range(500)
    )
    yield
    while scene.goes_on:
        peer.ask(some, 500)


def unread_lists(scene: Scene) -> Iterator[None]:
    scene.logs()
    some = joined(frame("GET_TOPICS_OF_NAMESPACE", request_id=at, namespace=_NAMESPACE) for at in range(900))
    yield
    for _ in range(scene.many(20)):
        scene.peer(deaf=True).say(some)
    scene.peer().await_calm()


def metadata(scene: Scene) -> Iterator[None]:
    some = joined(
        frame("PARTITIONED_METADATA", request_id=at, topic=f"persistent://{_NAMESPACE}/none-{at}")
        + frame("LOOKUP", request_id=at, topic=f"persistent://{_NAMESPACE}/none-{at}")
        for at in range(900)
    )
    peer = scene.peer()
    yield
    while scene.goes_on:
        peer.ask(some, 1_800)


def long_filters(scene: Scene) -> Iterator[None]:
    scene.topics(_NAMESPACE, (f"t-{number}" for number in range(100)))
    yield
    for number in range(scene.many(90)):
        peer = scene.peer()
        peer.ask(_watch(number, ("k", f"{number}" + "v" * scene.many(4_400_000))))
        peer.await_calm()


def distinct_filters(scene: Scene) -> Iterator[None]:
    scene.topics(_NAMESPACE, (f"t-{number}" for number in range(100)))
    peer = scene.peer()
    frames = [_watch(at, ("k", f"v-{at}")) for at in range(scene.many(5_000))]
    yield
    peer.ask(joined(frames), len(frames))


def distinct_namespaces(scene: Scene) -> Iterator[None]:
    peer = scene.peer()
    frames = [_watch(at, namespace=f"public/none-{at}") for at in range(scene.many(5_000))]
    yield
    peer.ask(joined(frames), len(frames))


def namespaces_beside_changes(scene: Scene) -> Iterator[None]:
    """Thousands of watches of one namespace, filtered or not, while topics come and go in it."""
    peer = scene.peer()
    frames = [_watch(at, *([("k", f"v-{at % 100}")] if at % 2 else [])) for at in range(scene.many(9_000))]
    peer.ask(joined(frames), len(frames))
    yield
    number = 0
    while scene.goes_on:
        number += 1
        scene.request("DELETE", f"{SCALABLE}/{scene.topic(f'made-{number}')}")
        peer.say(PING)


def namespace_churn(scene: Scene) -> Iterator[None]:
    """Watches of one id, each on another namespace."""
    peer = scene.peer()
    yield
    number = 0
    while scene.goes_on:
        some = []
        for _ in range(500):
            number += 1
            some.append(_watch(number % 7, namespace=f"public/n-{number}"))
            some.append(frame("WATCH_SCALABLE_TOPICS_CLOSE", watch_id=(number + 3) % 7))
        peer.say(joined(some))
        peer.await_calm()


def created_by_watching(scene: Scene) -> Iterator[None]:
    peer = scene.peer()
    yield
    number = 0
    while scene.goes_on:
        some = []
        for _ in range(200):
            number += 1
            some.append(watch_message(number, f"topic://{_NAMESPACE}/{scene.name('made')}-{number}"))
            some.append(frame("SCALABLE_TOPIC_CLOSE", session_id=number))
        peer.say(joined(some))
        peer.await_calm()


def layouts(scene: Scene) -> Iterator[None]:
    """Ten thousand watches of a topic with a thousand segments, by somebody who does not read."""
    topic = scene.topic("wide", scene.many(1_000))
    frames = [watch_message(at, f"topic://{_NAMESPACE}/{topic}") for at in range(scene.many(9_000))]
    yield
    for _ in range(3):
        peer = scene.peer(deaf=True)
        peer.say(joined(frames))
    scene.peer().await_calm()


def wide_changes(scene: Scene) -> Iterator[None]:
    """The segments of a topic that ten thousand watch are split and merged."""
    topic = scene.topic("wide", scene.many(200))
    peer = scene.peer()
    count = scene.many(2_000)
    peer.ask(joined(watch_message(at, f"topic://{_NAMESPACE}/{topic}") for at in range(count)), count)
    yield
    for number in range(20):
        scene.request("POST", f"{SCALABLE}/{topic}/split/{number}")
        peer.hear(count)


def registrations(scene: Scene) -> Iterator[None]:
    topic = scene.topic("led", 4)
    peer = scene.peer()
    count = scene.many(5_000)
    frames = [subscribe_message(at, f"topic://{_NAMESPACE}/{topic}", "s", f"c-{at}") for at in range(count)]
    leaving = [unsubscribe_message(at) for at in range(count)]
    yield
    peer.ask(joined(frames), count)
    peer.ask(joined(leaving), count)


def registrations_of_many(scene: Scene) -> Iterator[None]:
    """A subscription of its own for each, and the connection closed in between."""
    topic = scene.topic("led", 100)
    frames = [subscribe_message(at, f"topic://{_NAMESPACE}/{topic}", f"s-{at % 900}", f"c-{at}") for at in range(1_800)]

    def storm(peer: Peer) -> None:
        peer.say(joined(frames))
        peer.hear(200)
        peer.close()

    yield
    scene.again(storm)


def odd_names(scene: Scene) -> Iterator[None]:
    """Names of all lengths and characters, for everything that takes one."""
    odd = [
        "",
        "/",
        "topic://",
        "topic://a/b/",
        "topic://a/b/" + "x" * scene.many(LONG),
        "segment://a/b/c/zzzz-0000-99999999999999999999",
    ]
    odd += [
        "persistent://a/b/" + "é" * 600,
        "topic://public/default/..",
        "topic://public/default/a\x00b",
        "persistent://public/default/x-partition-99999999999999999999999",
    ]
    odd += ["segment://public/default/" + "/" * scene.many(1_000_000), "topic://" + "a/" * scene.many(1_000_000)]
    frames = []
    for at, name in enumerate(odd):
        frames += [
            watch_message(at, name),
            frame("LOOKUP", request_id=at, topic=name),
            frame("PARTITIONED_METADATA", request_id=at, topic=name),
            frame("PRODUCER", request_id=at, producer_id=at, topic=name),
            frame("GET_SCHEMA", request_id=at, topic=name),
            frame("WATCH_SCALABLE_TOPICS", watch_id=at, namespace=name),
            frame("GET_TOPICS_OF_NAMESPACE", request_id=at, namespace=name),
            subscribe_message(at, name, "s", "c"),
        ]

    def storm(peer: Peer) -> None:
        for message in frames:
            peer.ask(message)

    yield
    scene.again(storm)


WATCHING = (
    Attack("5,000 patterns over 2,000 logs", patterns),
    Attack("5,000 patterns beside new logs", patterns_beside_changes, litters=True),
    Attack("costly patterns", costly_patterns),
    Attack("lists of topics", lists),
    Attack("lists of topics that nobody reads", unread_lists),
    Attack("LOOKUP and PARTITIONED_METADATA storm", metadata),
    Attack("90 watches with a filter of 4.4 MB", long_filters),
    Attack("5,000 distinct filters", distinct_filters),
    Attack("5,000 namespaces watched", distinct_namespaces),
    Attack("9,000 namespace watches beside changes", namespaces_beside_changes),
    Attack("namespace watches come and go", namespace_churn),
    Attack("topics created by watching", created_by_watching, litters=True),
    Attack("27,000 unread layouts of 1,000 segments", layouts),
    Attack("splits under 2,000 watches", wide_changes),
    Attack("5,000 consumers register and leave", registrations),
    Attack("consumers register and vanish", registrations_of_many),
    Attack("odd names", odd_names),
)
