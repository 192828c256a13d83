"""`vela produce`: messages from the command line or from standard input, and where each was stored."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.interrupting import Interruption, reaching, run_until_interrupted, state_printer
from gateway.cli.options import (
    DEFAULT_SERVICE_URL,
    AnyTopic,
    Properties,
    ServiceUrl,
    check_service_url,
    parse_any_topic,
    parse_properties,
)

if TYPE_CHECKING:
    import trio

    from protocol.client import Message, Sending

_READ_SIZE = 64 * 1024
# How many messages may wait to be printed; confirmed ones, so their number is no matter to the server.
_UNPRINTED = 1_000


def produce(
    topic: AnyTopic,
    messages: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGES]...", help="What to send.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Send every line of standard input.")] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="The key of the messages; without one they take turns on segments."),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option("--separator", metavar="TEXT", help="What is before it in a message is its key, as in key:value."),
    ] = None,
    properties: Properties = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Send so many in all, beginning again with the first.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many in a second.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message and line.")] = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Send messages, and print where each of them was stored: its id and its segment."""
    from gateway.cli.messages import message_of

    if bool(messages) == stdin:
        raise typer.BadParameter("give either messages or --stdin.", param_hint="MESSAGES, --stdin")
    if separator == "":
        raise typer.BadParameter("it is empty.", param_hint="--separator")
    split_at = None if separator is None else separator.encode()
    given = parse_properties(properties)
    name = str(parse_any_topic(topic))
    url = check_service_url(service_url)
    ready = [message_of(os.fsencode(text), split_at, key, given) for text in messages or ()]

    async def source() -> AsyncIterator[Message]:
        if stdin:
            number = 0
            async for line in _lines():
                yield message_of(line, split_at, key, given)
                number += 1
                if number == count:
                    return
        else:
            for message in islice(cycle(ready), count or len(ready)):
                yield message

    run_until_interrupted(lambda interruption: _send(url, name, source(), rate, as_json, interruption))


async def _send(
    service_url: str,
    topic: str,
    messages: AsyncIterator[Message],
    rate: float | None,
    as_json: bool,
    interruption: Interruption,
) -> None:
    import trio

    from protocol import client

    with reaching(service_url):
        async with (
            client.open_pool(service_url, on_state=state_printer(service_url)) as pool,
            client.open_producer(pool, topic) as producer,
            trio.open_nursery() as nursery,
        ):
            sent, unprinted = trio.open_memory_channel[client.Sending](_UNPRINTED)
            nursery.start_soon(_print_stored, unprinted, as_json)
            # What was accepted before Ctrl-C is still confirmed and printed.
            async with sent:
                with interruption.stoppable():
                    next_time = trio.current_time()
                    async for message in messages:
                        if rate is not None:
                            await trio.sleep_until(next_time)
                            next_time = max(next_time + 1 / rate, trio.current_time() - 1)
                        await sent.send(await producer.post(message))


async def _print_stored(stored: trio.MemoryReceiveChannel[Sending], as_json: bool) -> None:
    from gateway.cli.messages import describe_stored, stored_as_object

    async for sending in stored:
        message_id = await sending.wait()
        (message,) = sending.messages
        if as_json:
            print(json.dumps(stored_as_object(message, message_id), ensure_ascii=False))
        else:
            print(describe_stored(message, message_id))
        sys.stdout.flush()


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input as they come."""
    import trio

    from gateway.cli.messages import Lines

    lines = Lines()
    # Past Python's own buffer, because a thread that waits in there could not be left behind at the end.
    while data := await trio.to_thread.run_sync(_read_stdin, abandon_on_cancel=True):
        for line in lines.add(data):
            yield line
    for line in lines.finish():
        yield line


def _read_stdin() -> bytes:
    return os.read(sys.stdin.fileno(), _READ_SIZE)
