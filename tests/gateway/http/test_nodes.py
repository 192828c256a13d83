"""The list of nodes when there is one, and when the store is away; for two nodes see test_leading.py."""

from metadata.lanes import Timeouts
from tests.gateway.http.running import HTTP_URL, PULSAR_URL, SCALABLE, Api, running_api
from tests.support.processes import ValkeyProcess

NODES = "/admin/v2/nodes"


async def test_single_node_lists_itself_and_what_it_leads(api: Api) -> None:
    alone = {"session": api.session.record.session, "pulsarUrl": PULSAR_URL, "httpUrl": HTTP_URL, "self": True}
    assert (await api.call("GET", NODES)).json() == [alone | {"leads": 0}]
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("POST", f"{SCALABLE}/t/split/0")
    assert (await api.call("GET", NODES)).json() == [alone | {"leads": 1}]


async def test_nodes_are_listed_while_the_store_is_silent(fresh_valkey: ValkeyProcess) -> None:
    timeouts = Timeouts(connect=0.3, silence=0.3, patience=0.6)
    async with running_api(fresh_valkey.url, timeouts=timeouts) as api:
        fresh_valkey.pause()
        response = await api.call("GET", NODES)
        fresh_valkey.resume()
        assert response.status_code == 200
        assert [(node["self"], node["leads"]) for node in response.json()] == [(True, None)]
