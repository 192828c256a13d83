"""The API as most tests use it."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway.http.running import Api, running_api
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def api(valkey: ValkeyProcess) -> AsyncIterator[Api]:
    async with running_api(valkey.url) as api:
        yield api
