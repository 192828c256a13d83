"""The viewers themselves: what a test tells them to do must be what they do."""

from protocol.names import TopicName
from tests.support.nodes import running_node, transitions_of, until_at_epoch, viewing
from tests.support.processes import ValkeyProcess

TOPIC = TopicName.parse("topic://public/default/orders")


async def test_a_viewer_that_was_stopped_twice_reads_on_when_it_is_told_to(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing(node) as viewer:
        view = await viewer.watch(TOPIC)
        await until_at_epoch(0, [view])
        viewer.stop_reading()
        # What was being waited for still arrives; only then the reader looks whether it is to go on.
        await transitions_of(node).split(TOPIC, 0)
        await until_at_epoch(1, [view])
        viewer.stop_reading()
        await transitions_of(node).split(TOPIC, 1)
        assert view.epochs == [0, 1]
        viewer.read_on()
        await until_at_epoch(2, [view])
