"""The nodes that share the store, over HTTP."""

from __future__ import annotations

from collections import Counter

from litestar import Controller, get

from gateway.http.documentation import refusals
from gateway.http.ports import Ports
from gateway.http.schemas import NodeInfo
from metadata.errors import StoreError


class NodeRoutes(Controller):
    path = "/admin/v2/nodes"
    tags = ("nodes",)

    @get(summary="List the nodes that are alive", responses=refusals())
    async def list_nodes(self, ports: Ports) -> list[NodeInfo]:
        """As this node saw them last, itself first; those that died are missed after their lease."""
        try:
            leads: Counter[str] | None = Counter((await ports.leaderships.listed()).values())
        except StoreError:
            # Who is there can be told without the store, and is asked above all when something is wrong with it.
            leads = None
        return [
            NodeInfo(
                node.session,
                node.pulsar_url,
                node.http_url,
                is_self=index == 0,
                leads=None if leads is None else leads[node.session],
            )
            for index, node in enumerate(ports.peers.nodes)
        ]
