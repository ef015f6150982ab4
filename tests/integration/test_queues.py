"""Work queues: readers of our own share a consumer's messages, without any leaf link."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from jetstream_client import (
    AsyncClient,
    AsyncQueue,
    AsyncQueueMessage,
    Client,
    ConsumerDescription,
    NotFoundError,
    PreconditionFailedError,
)
from jetstream_client.cli.main import run as run_command
from jetstream_client.transport import consumers as consumers_module
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.services import Stub
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

LONG = 60.0
"""Longer than any test: nothing comes again by itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("queues") / "data")
    running.start()
    yield running
    running.stop()


async def filled(client: AsyncClient, name: str, count: int) -> str:
    """A stream with messages 0 to `count`."""
    await client.create_stream(name, f"{name}.>")
    for number in range(count):
        await client.publish(f"{name}.x", b"%d" % number, key=b"k%d" % number)
    return name


async def taken(queue: AsyncQueue, count: int) -> list[AsyncQueueMessage]:
    async with asyncio.timeout(60):
        return [await anext(queue) for _ in range(count)]


async def until(
    client: AsyncClient, stream: str, is_so: Callable[[ConsumerDescription], bool]
) -> None:
    """Return once the consumer is so."""
    for _ in range(2000):
        if is_so(await client.describe_consumer(stream, "mailers")):
            return
        await asyncio.sleep(0.03)
    raise AssertionError(f"the consumer of {stream} is never so")


@on_loop
async def test_what_is_acknowledged_is_done_and_the_rest_comes_again(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "first", 4)
        async with client.queue(stream, "mailers", ack_wait=4.0) as queue:
            messages = await taken(queue, 4)
            assert [each.value for each in messages] == [b"0", b"1", b"2", b"3"]
            assert [each.key for each in messages] == [b"k0", b"k1", b"k2", b"k3"]
            assert all([await each.ack() for each in messages[:3]])
            (again,) = await taken(queue, 1)
            assert (again.offset, again.deliveries) == (3, 2)
            assert await again.ack()
        found = await client.describe_consumer(stream, "mailers")
        assert (found.ack_floor, found.ack_pending, found.pending) == (4, 0, 0)
        assert found.redeliveries >= 1


@on_loop
async def test_a_reader_that_closes_gives_back_what_it_was_not_handed(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "shared", 6)
        one = client.queue(stream, "mailers", ack_wait=LONG, prefetch=6)
        two = client.queue(stream, "mailers", prefetch=6)
        (first,) = await taken(one, 1)
        assert await first.ack()
        await one.aclose()
        rest = await taken(two, 5)
        assert sorted(each.offset for each in rest) == [1, 2, 3, 4, 5]
        await two.aclose()


@on_loop
async def test_a_delay_a_longer_time_and_the_end_of_a_message(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "kinds", 3)
        async with client.queue(stream, "mailers", ack_wait=LONG) as queue:
            one, two, three = await taken(queue, 3)
            assert await one.term()
            assert await two.nak(0.05)
            assert await three.extend()
            (again,) = await taken(queue, 1)
            assert (again.offset, again.deliveries) == (1, 2)
            assert await again.ack()
            found = await client.describe_consumer(stream, "mailers")
            assert found.ack_pending == 1
            assert found.oldest_unacknowledged is not None
            assert await three.ack()


@on_loop
async def test_words_about_an_earlier_delivery_take_a_message_from_nobody(
    server: ServerProcess,
) -> None:
    """A refusal that its client repeats may come after the next delivery. What is done is done."""
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "again", 1)
        async with client.queue(stream, "mailers", ack_wait=LONG) as queue:
            (first,) = await taken(queue, 1)
            assert await first.nak()
            (again,) = await taken(queue, 1)
            assert again.deliveries == 2
            assert not await first.nak()
            assert not await first.extend()
            found = await client.describe_consumer(stream, "mailers")
            assert (found.ack_pending, found.redeliveries) == (1, 1)
            assert await again.extend()
            assert await first.ack()
            assert not await again.extend()
            found = await client.describe_consumer(stream, "mailers")
            assert (found.ack_floor, found.ack_pending, found.redeliveries) == (1, 0, 1)


@on_loop
async def test_a_message_that_nobody_acknowledges_becomes_a_dead_letter(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "failing", 1)
        await client.create_stream("dead", "dead.>")
        async with client.queue(
            stream, "mailers", ack_wait=LONG, max_deliver=2, dead_letter="dead.mail"
        ) as queue:
            for times in (1, 2):
                (message,) = await taken(queue, 1)
                assert message.deliveries == times
                await message.nak()
            (dead,) = await client.fetch("dead", 0, max_wait=60)
            assert (dead.value, dead.key) == (b"0", b"k0")
            assert dead.headers["Dead-Letter-Offset"] == "0"

            await until(client, stream, lambda it: (it.ack_floor, it.ack_pending) == (1, 0))


@on_loop
async def test_a_reader_that_acknowledges_nothing_gets_no_more_than_it_may(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "bounded", 5)
        async with client.queue(
            stream, "mailers", ack_wait=LONG, max_ack_pending=2, prefetch=5
        ) as queue:
            one, _ = await taken(queue, 2)
            found = await client.describe_consumer(stream, "mailers")
            assert (found.position, found.ack_pending, found.pending) == (2, 2, 3)
            await one.ack()
            (three,) = await taken(queue, 1)
            assert three.offset == 2


@on_loop
async def test_consumers_are_described_altered_paused_and_deleted(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By whatever clock: a program's own may be wrong.
    monkeypatch.setattr(consumers_module, "time", SimpleNamespace(time=lambda: 0.0))
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "managed", 1)
        made = await client.create_consumer(stream, "b", filter="managed.x", ack_wait=5)
        assert (made.filters, made.ack_wait, made.max_deliver) == (("managed.x",), 5.0, 0)
        altered = await client.create_consumer(stream, "b", max_deliver=3)
        assert (altered.ack_wait, altered.max_deliver) == (5.0, 3)
        assert altered.created_us == made.created_us
        with pytest.raises(PreconditionFailedError):
            await client.create_consumer(stream, "b", filter="managed.y")
        await client.create_consumer(stream, "a", start="latest")
        assert [each.name for each in await client.list_consumers(stream)] == ["a", "b"]
        await client.create_consumer(await filled(client, "another", 1), "c")
        known = [(each.stream.split("@")[0], each.name) for each in await client.list_consumers()]
        assert known.index(("another", "c")) < known.index(("managed", "a"))
        assert ("managed", "b") in known
        assert (await client.describe_consumer(stream, "a")).position == 1
        paused = await client.pause_consumer(stream, "b", LONG)
        assert paused.paused_until is not None
        async with client.queue(stream, "b") as queue:
            waiting = asyncio.create_task(taken(queue, 1))
            resumed = await client.resume_consumer(stream, "b")
            assert resumed.paused_until is None
            (message,) = await waiting
            await message.ack()
        await client.delete_consumer(stream, "a")
        with pytest.raises(NotFoundError):
            await client.describe_consumer(stream, "a")


@on_loop
async def test_a_delete_that_is_repeated_deletes_no_later_consumer(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "repeated", 0)
        first = await client.create_consumer(stream, "mailers")
        await client.delete_consumer(stream, "mailers")
        await client.create_consumer(stream, "mailers")
        copy = pb.DeleteConsumerRequest(
            stream=common_pb2.StreamRef(id=first.stream_id),
            name="mailers",
            created_us=first.created_us,
        )
        with (
            grpc.insecure_channel(server.grpc) as channel,
            pytest.raises(grpc.RpcError, match="there is no consumer 'mailers'"),
        ):
            Stub("Consumers", channel).DeleteConsumer(copy)
        assert (await client.describe_consumer(stream, "mailers")).created_us > first.created_us


@on_loop
async def test_a_reader_of_a_deleted_consumer_is_told(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "gone", 0)
        async with client.queue(stream, "mailers") as queue:
            waiting = asyncio.create_task(taken(queue, 1))

            await until(client, stream, lambda it: it.waiting == 1)
            await client.delete_consumer(stream, "mailers")
            with pytest.raises(NotFoundError):
                await waiting


WORKER = """
import sys, time
from jetstream_client import Client
with Client(sys.argv[1], timeout=60) as client:
    for message in client.queue("killed", "mailers", prefetch=4):
        print(message.offset, flush=True)
        time.sleep(600)
"""


@on_loop
async def test_a_reader_that_is_killed_gives_its_messages_to_others(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "killed", 4)
        await client.create_consumer(stream, "mailers", ack_wait=1)
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, server.grpc, stdout=asyncio.subprocess.PIPE
        )
        assert worker.stdout is not None
        async with asyncio.timeout(60):
            assert await worker.stdout.readline() == b"0\n"
        worker.kill()
        await worker.wait()
        found = set[int]()
        async with client.queue(stream, "mailers") as queue, asyncio.timeout(60):
            while found != {0, 1, 2, 3}:  # What is held for too long comes once more.
                message = await anext(queue)
                found.add(message.offset)
                await message.ack()


def test_the_command_manages_consumers(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        assert run_command(["--server", server.grpc, "consumer", *arguments]) == 0
        return capsys.readouterr().out

    with Client(server.grpc, timeout=60) as client:
        client.create_stream("commanded", "commanded.>")
    made = run("create", "commanded", "mailers", "--ack-wait", "5s", "--max-deliver", "3")
    assert "consumer mailers of commanded@commanded.> is at offset 0" in made
    assert "no reader" in run("list", "commanded")
    found = json.loads(run("describe", "commanded", "mailers", "--json"))
    assert (found["ack_wait"], found["max_deliver"], found["pending"]) == (5.0, 3, 0)
    assert "pauses for 10m" in run("pause", "commanded", "mailers", "10m")
    assert "paused" in run("list", "commanded")
    assert "delivers" in run("resume", "commanded", "mailers")
    assert "deleted consumer mailers" in run("delete", "commanded", "mailers", "--yes")
    assert "mailers" not in run("list", "commanded")


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: bytes = answer.read()
    return found


@on_loop
async def test_scalers_metrics_and_the_console_see_what_waits(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "scaled", 3)
        async with client.queue(stream, "mailers", ack_wait=LONG, max_ack_pending=1) as queue:
            await taken(queue, 1)
            url = f"{server.http}/jsz?acc=$G&consumers=true&config=true"
            found = json.loads(await asyncio.to_thread(fetched, url))
            assert found["meta_cluster"]["cluster_size"] == 1
            (account,) = found["account_details"]
            assert account["name"] == "$G"
            (of_stream,) = [each for each in account["stream_detail"] if each["name"] == stream]
            (consumer,) = of_stream["consumer_detail"]
            assert (consumer["name"], consumer["stream_name"]) == ("mailers", stream)
            assert (consumer["num_pending"], consumer["num_ack_pending"]) == (2, 1)
            text = (
                await asyncio.to_thread(fetched, f"{server.http}/metrics?streams=scaled")
            ).decode()
            labels = '{consumer="mailers",stream="scaled",subject="scaled.>"}'
            assert f"jetstream_consumer_ack_pending{labels} 1.0" in text
            assert f"jetstream_consumer_pending{labels} 2.0" in text
            url = f"{server.http}/api/v1/consumers?stream=scaled@scaled.%3E"
            (shown,) = json.loads(await asyncio.to_thread(fetched, url))["consumers"]
            assert shown["name"] == "mailers"


def test_the_examples_of_the_page_run(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "queues.md"
    program = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    program = program.replace("localhost:9292", server.grpc).replace('"dead', '"page.dead')
    exec(compile(program, "queues.md", "exec"), {})
    said = capsys.readouterr().out
    assert "3 are done" in said
    assert "0 are left" in said


@on_loop
@pytest.mark.parametrize("max_wait", [0, 0.05])
async def test_a_loop_with_a_limit_ends_once_no_message_is_left(
    server: ServerProcess, max_wait: float
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, f"drained-{str(max_wait).replace('.', '-')}", 100)
        async with client.queue(stream, "workers", max_wait=max_wait, prefetch=7) as queue:
            offsets = [message.offset async for message in queue if await message.ack()]
            assert offsets == list(range(100))
            with pytest.raises(StopAsyncIteration):
                await anext(queue)
        assert (await client.describe_consumer(stream, "workers")).ack_floor == 100


def test_a_loop_with_a_limit_ends_for_programs_without_asyncio_too(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("drained", "drained.>")
        for number in range(3):
            client.publish("drained.x", b"%d" % number)
        with client.queue("drained", "workers", max_wait=0) as queue:
            held = list(queue)
            assert [message.value for message in held] == [b"0", b"1", b"2"]
            assert held[0].nak()  # The loop is over, and what it was handed is not.
        with client.queue("drained", "workers", max_wait=0) as queue:
            assert [message.offset for message in queue] == [0]


@on_loop
async def test_a_loop_that_ends_has_buried_its_dead_letters(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await filled(client, "drained-letters", 3)
        await client.create_stream("drained-dead", "drained-dead")
        settings: dict[str, Any] = {"max_deliver": 1, "dead_letter": "drained-dead", "max_wait": 0}
        async with client.queue(stream, "workers", **settings) as queue:
            for message in [each async for each in queue]:
                assert await message.nak()
        async with client.queue(stream, "workers", **settings) as queue:
            assert [message.offset async for message in queue] == []
        found = await client.fetch("drained-dead")
        assert {*found.values()} == {b"0", b"1", b"2"}


def test_programs_without_asyncio_use_the_same_queue(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("blocking", "blocking.>")
        for number in range(3):
            client.publish("blocking.x", b"%d" % number)
        with client.queue("blocking", "mailers") as queue:
            found = []
            for message in queue:
                found.append(message.value)
                assert message.ack()
                if len(found) == 3:
                    break
        assert found == [b"0", b"1", b"2"]
