"""Opening a connection to an address, with every way in which that fails as an error of the client."""

from __future__ import annotations

import trio

from protocol.client.addresses import ServiceAddress
from protocol.client.errors import ConnectionLost, RequestTimedOut


async def dial(address: ServiceAddress, timeout: float) -> trio.SocketStream:
    try:
        with trio.fail_after(timeout):
            return await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError:
        raise RequestTimedOut(f"{address} did not accept a connection within {timeout:g} s.") from None
    except OSError as error:
        raise ConnectionLost(f"Nothing answers at {address}: {_reason(error)}.") from error
    except UnicodeError as error:
        raise ConnectionLost(f"Nothing answers at {address}: no host can have that name.") from error


def _reason(error: BaseException) -> str:
    # Trio's own error says that all attempts failed, and the group behind it holds one error for each.
    attempts = error.__cause__
    if isinstance(attempts, BaseExceptionGroup):
        return _reason(attempts.exceptions[0])
    return getattr(error, "strerror", None) or str(error)
