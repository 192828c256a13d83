"""Topics that have no layout: the partitions of a plain topic, or a single segment."""

from __future__ import annotations

from protocol.client.pool import ConnectionPool
from protocol.client.routes import Routes
from protocol.names import SEGMENT, TopicName


async def plain_routes(pool: ConnectionPool, topic: TopicName, create_if_missing: bool) -> Routes:
    """Ask any server how many partitions there are; a segment has none."""
    if topic.domain == SEGMENT:
        return Routes.to_partitions(str(topic), 0)
    connection = await pool.service()
    partitions = await connection.partitions(str(topic), create_if_missing=create_if_missing)
    return Routes.to_partitions(str(topic), partitions)
