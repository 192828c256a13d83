"""`vela nodes`: which nodes share the store, and how many topics each of them leads."""

from __future__ import annotations

from gateway.cli.options import DEFAULT_ADMIN_URL, AdminUrl, Json, admin_client
from gateway.cli.terminal import cell, print_json, print_parts, table


def nodes(as_json: Json = False, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """List the nodes that are alive, how many topics each leads, and which one answers."""
    from gateway.cli.answers import NodeSummary, read

    with admin_client(admin_url) as client:
        content = client.list_nodes()
        found = read(client, content, list[NodeSummary], "list of nodes")
    if as_json:
        print_json(content)
        return
    made = table(
        "session", "self", "binary protocol", "admin API", "leads", right=("leads",), whole=("session", "self")
    )
    for node in found:
        made.add_row(
            cell(node.session),
            "yes" if node.is_self else "",
            cell(node.pulsar_url),
            cell(node.http_url),
            "?" if node.leads is None else str(node.leads),
            style="bold" if node.is_self else None,
        )
    print_parts(made)
