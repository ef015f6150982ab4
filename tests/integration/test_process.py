"""`client.process` with a real server: order, retries, dead letters, ends, groups, outputs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Literal

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    Message,
    NoStreamError,
    Output,
    PreconditionFailedError,
)
from jetstream_client.reading import consumer as consumers
from tests.integration.process_worker import copied_to
from tests.support.fork_server import fork_server
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess

RECORDS = 60

until = partial(eventually, seconds=60.0)


async def prepare(client: AsyncClient, name: str, records: int = RECORDS) -> None:
    """A stream with records of five keys, and some without, and one for what comes of them."""
    await client.create_stream(name, f"{name}.>")
    await client.create_stream(f"{name}-out", f"out.{name}")
    await client.create_stream(f"{name}-dead", f"dead.{name}")
    for number in range(records):
        key = None if number % 6 == 5 else b"k%d" % (number % 6)
        await client.publish(f"{name}.x", b"%d" % number, key=key, headers={"n": str(number)})


async def values(client: AsyncClient, stream: str) -> list[bytes | None]:
    return [message.value async for message in client.consume(stream, stop="latest")]


@on_loop
async def test_each_record_is_handled_in_the_order_of_its_key(server: ServerProcess) -> None:
    running: Counter[bytes | None] = Counter()
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    most = 0

    async def handler(message: Message) -> None:
        nonlocal most
        running[message.key] += 1
        most = max(most, running.total())
        assert message.key is None or running[message.key] == 1
        await asyncio.sleep(0)
        by_key[message.key].append(message.offset)
        running[message.key] -= 1

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "keys")
        done = await client.process(
            "keys", handler, cursor="p", stop="latest", concurrency=4, outstanding_max=10
        )
        assert (done.records, done.dead_letters, done.failures) == (RECORDS, 0, 0)
        assert 1 < most <= 4
        keyed = [offsets for key, offsets in by_key.items() if key is not None]
        assert all(offsets == sorted(offsets) for offsets in keyed)
        assert sorted(offset for offsets in by_key.values() for offset in offsets) == list(
            range(RECORDS)
        )
        assert (await client.describe_cursor("p", "keys")).lag == 0
        again = await client.process("keys", handler, cursor="p", stop="latest")
        assert again.records == 0


@on_loop
async def test_a_record_that_fails_is_tried_again_and_then_a_dead_letter(
    server: ServerProcess,
) -> None:
    attempts: Counter[int] = Counter()

    async def handler(message: Message) -> None:
        attempts[message.offset] += 1
        if message.offset == 7 or (message.offset == 9 and attempts[9] < 3):
            raise ValueError(f"no\nmore than {message.text}")

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "fails", 20)
        done = await client.process(
            "fails",
            handler,
            cursor="p",
            stop="latest",
            retries=2,
            retry_delay=0.01,
            dead_letter="dead.fails",
        )
        assert (done.records, done.dead_letters, done.failures) == (19, 1, 5)
        assert (attempts[7], attempts[9], attempts.total()) == (3, 3, 24)
        assert (await client.describe_cursor("p", "fails")).lag == 0
        [letter] = await client.fetch("fails-dead")
        assert (letter.key, letter.value, letter.headers["n"]) == (b"k1", b"7", "7")
        said = {name: text for name, text in letter.headers.items() if name.startswith("Dead-")}
        stream = await client.describe_stream("fails")
        [record] = await client.fetch("fails", 7, max_messages=1)
        assert said == {
            "Dead-Letter-Stream": "fails@fails.>",
            "Dead-Letter-Stream-Id": str(stream.id),
            "Dead-Letter-Offset": "7",
            "Dead-Letter-Subject": "fails.x",
            "Dead-Letter-Timestamp": record.timestamp.isoformat(),
            "Dead-Letter-Process": "p",
            "Dead-Letter-Attempts": "3",
            "Dead-Letter-Error": "builtins.ValueError",
            "Dead-Letter-Error-Message": "no more than 7",
        }


@on_loop
async def test_without_dead_letters_the_exception_ends_it_in_front_of_the_record(
    server: ServerProcess,
) -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        if message.offset == 7:
            raise ValueError("not this one")
        seen.append(message.offset)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "ends", 20)
        with pytest.raises(ValueError, match="not this one") as caught:
            await client.process(
                "ends", handler, cursor="p", stop="latest", retries=1, retry_delay=0.01
            )
        assert caught.value.__notes__ == [
            "handling record 7 of stream 'ends@ends.>' was tried 2 times"
        ]
        assert set(range(7)) <= set(seen)
        assert (await client.describe_cursor("p", "ends")).offset == 7


@on_loop
async def test_what_cannot_be_deserialised_is_a_dead_letter_too(server: ServerProcess) -> None:
    numbers: list[int] = []

    async def handler(message: Message) -> None:
        numbers.append(message.value)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("texts", "texts")
        await client.create_stream("texts-dead", "dead.texts")
        for value in (b"1", b"two", b"3"):
            await client.publish("texts", value)
        async with client.publisher("texts") as publisher:
            await publisher.send(b"four", key=b"\xff\x00", headers={"Trace": "t"})
        done = await client.process(
            "texts",
            handler,
            cursor="p",
            stop="latest",
            retries=0,
            dead_letter="dead.texts",
            value_deserializer=int,
        )
        assert (sorted(numbers), done.dead_letters) == ([1, 3], 2)
        letters = {letter.value: letter for letter in await client.fetch("texts-dead")}
        binary = letters[b"four"]
        assert (binary.key, binary.headers["Dead-Letter-Key-Base64"]) == (None, "/wA=")
        assert binary.headers["Trace"] == "t"


@pytest.mark.parametrize("via", ["direct", "auto"])
def test_outputs_and_dead_letters_go_straight_where_there_is_no_nats(
    server: ServerProcess, via: Literal["direct", "auto"]
) -> None:
    """Those of records that come again are known by their ids, as on NATS."""
    name = f"past_{via}"

    async def handler(message: Message) -> Output:
        if message.offset == 3:
            raise ValueError
        return Output(f"out.{name}", message.value)

    async def main() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await prepare(client, name, 20)
        async with AsyncClient(server.grpc, nats="nats://127.0.0.1:1", timeout=60) as client:
            for again in (False, True):
                if again:
                    await client.seek_cursor("p", name, 0)
                done = await client.process(
                    name,
                    handler,
                    cursor="p",
                    stop="latest",
                    retries=0,
                    dead_letter=f"dead.{name}",
                    via=via,
                )
                assert (done.records, done.dead_letters) == (19, 1)
            stored = await values(client, f"{name}-out")
            assert Counter(stored) == Counter(b"%d" % n for n in range(20) if n != 3)
            assert await values(client, f"{name}-dead") == [b"3"]

    asyncio.run(main())


@on_loop
async def test_outputs_are_stored_once_although_their_records_come_again(
    server: ServerProcess,
) -> None:
    async def handler(message: Message) -> list[Output]:
        assert message.value is not None
        doubled = Output("out.twice", message.value * 2, key=message.key, headers={"h": "1"})
        return [doubled, Output("out.twice", None)]

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "twice", 20)
        await client.process("twice", handler, cursor="p", stop="latest")
        await client.seek_cursor("p", "twice", 5)
        again = await client.process("twice", handler, cursor="p", stop="latest")
        assert again.records == 15
        stored = await values(client, "twice-out")
        assert Counter(stored) == Counter([b"%d" % n * 2 for n in range(20)] + [None] * 20)
        # Another process is another author.
        await client.process("twice", handler, cursor="q", stop="latest")
        assert len(await values(client, "twice-out")) == 80


@on_loop
async def test_room_ends_where_a_record_does_not_end(server: ServerProcess) -> None:
    release = asyncio.Event()
    begun: list[int] = []

    async def handler(message: Message) -> None:
        begun.append(message.offset)
        if message.offset == 0:
            await release.wait()

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "room")
        task = asyncio.create_task(
            client.process("room", handler, cursor="p", stop="latest", outstanding_max=10)
        )
        # 5 records have the key of the first one, or one of the first ten is it.
        others = [number for number in range(1, 10) if number % 6]
        await until(lambda: set(others) <= set(begun))
        assert max(begun) < 10
        release.set()
        assert (await task).records == RECORDS


@on_loop
async def test_it_stops_when_it_is_told_and_goes_on_there(server: ServerProcess) -> None:
    stop = asyncio.Event()
    handled: list[int] = []

    async def handler(message: Message) -> None:
        handled.append(message.offset)
        if len(handled) == 20:
            stop.set()
        await asyncio.sleep(0.001)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "told")
        first = await client.process("told", handler, cursor="p", stop_event=stop, concurrency=3)
        assert 20 <= first.records < RECORDS
        stop = asyncio.Event()
        second = await client.process("told", handler, cursor="p", stop="latest")
        # What had ended is not repeated, except behind a record that had not begun.
        assert first.records + second.records >= RECORDS
        assert set(handled) == set(range(RECORDS))


@on_loop
async def test_a_good_end_repeats_what_had_ended_behind_a_record_that_had_not_begun(
    server: ServerProcess,
) -> None:
    handled: list[int] = []
    stop, others = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> Output:
        if message.offset == 0 and not handled:
            await others.wait()
            stop.set()
            await asyncio.sleep(0.1)  # It is told, and waits for this record.
        handled.append(message.offset)
        if len(handled) == 6:
            others.set()
        return Output("out.behind", b"%d" % message.offset, key=message.key)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "behind", 0)
        for key in (b"a", b"a", *[b"b"] * 6):
            await client.publish("behind.x", b"", key=key)
        await client.process("behind", handler, cursor="p", stop_event=stop, concurrency=2)
        assert handled == [2, 3, 4, 5, 6, 7, 0]
        assert (await client.describe_cursor("p", "behind")).offset == 1
        handled.clear()
        await client.process("behind", handler, cursor="p", stop="latest")
        assert [offset for offset in handled if offset > 1] == [2, 3, 4, 5, 6, 7]
        assert sorted(handled) == [1, 2, 3, 4, 5, 6, 7]
        stored = await values(client, "behind-out")
        assert sorted(stored) == [b"%d" % number for number in range(8)]  # type: ignore[type-var]


@on_loop
async def test_a_second_process_on_one_cursor_ends_with_an_error(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "alone", 5)
        seen: list[int] = []

        async def handler(message: Message) -> None:
            seen.append(message.offset)

        task = asyncio.create_task(client.process("alone", handler, cursor="p"))
        await until(lambda: len(seen) == 5)
        while not task.done():
            await client.seek_cursor("p", "alone", 0)
            await client.publish("alone.x", b"more")
            await asyncio.wait([task], timeout=0.2)
        with pytest.raises(PreconditionFailedError, match="one consumer at a time"):
            await task


@on_loop
async def test_members_of_a_group_share_the_work_and_repeat_nothing(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        for number in range(4):
            await client.create_stream(f"jobs-{number}", "jobs.>", group="jobs")
        handled: list[tuple[str, int]] = []
        assigned, revoked = [0, 0], [0, 0]
        stops = [asyncio.Event(), asyncio.Event()]

        async def handler(message: Message) -> None:
            await asyncio.sleep(0.002)
            handled.append((message.stream, message.offset))

        def count(counts: list[int], number: int, names: Sequence[str]) -> None:
            counts[number] += len(names)

        def worker(number: int) -> asyncio.Task[object]:
            return asyncio.create_task(
                client.process(
                    "jobs",
                    handler,
                    group="workers",
                    stop_event=stops[number],
                    on_assigned=partial(count, assigned, number),
                    on_revoked=partial(count, revoked, number),
                )
            )

        async def publish(records: int) -> None:
            for _ in range(records):
                await client.publish("jobs.x", b"job", key=b"one", acks="any")

        first = worker(0)
        await publish(100)
        second = worker(1)
        await until(lambda: (assigned, revoked) == ([4, 2], [2, 0]))
        await publish(100)
        await until(lambda: len(handled) >= 200)
        stops[0].set()
        await first
        await publish(20)
        await until(lambda: len(handled) >= 220)
        stops[1].set()
        await second
        assert len(set(handled)) == len(handled) == 220
        by_stream: dict[str, list[int]] = defaultdict(list)
        for stream, offset in handled:
            by_stream[stream].append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_stream.values())
        assert [each.lag for each in await client.describe_cursors("workers")] == [0] * 4
        assert (assigned, revoked) == ([4, 4], [4, 4])


@on_loop
async def test_a_cancelled_task_gives_up_what_is_being_handled(server: ServerProcess) -> None:
    ended: set[int] = set()

    async def handler(message: Message) -> None:
        if message.offset == 5:
            await asyncio.Event().wait()
        ended.add(message.offset)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "given-up")
        task = asyncio.create_task(client.process("given-up", handler, cursor="p"))
        await until(lambda: len(ended) == RECORDS - 1)  # Record 5 has no key.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.describe_cursor("p", "given-up")).offset == 5


@on_loop
async def test_a_member_that_was_given_up_never_handles_a_key_twice_at_once(
    server: ServerProcess,
) -> None:
    running: Counter[bytes | None] = Counter()
    handled: list[int] = []
    assigned: list[str] = []
    release, stop = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        running[message.key] += 1
        assert running[message.key] == 1
        await release.wait()
        handled.append(message.offset)
        running[message.key] -= 1

    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("zombie", "zombie.>")
        for _ in range(6):
            await client.publish("zombie.x", b"", key=b"one")
        task = asyncio.create_task(
            client.process(
                "zombie",
                handler,
                group="zombies",
                session_timeout=6.0,
                stop_event=stop,
                retries=0,
                on_assigned=assigned.extend,
            )
        )
        await until(lambda: running[b"one"] == 1)
        [member] = client._group_consumers
        member._membership.lost()  # As after a pause that was longer than its session.
        await until(lambda: len(assigned) == 2)
        release.set()
        # What was being handled counts for nothing, and comes again.
        await until(lambda: handled == [0, 0, 1, 2, 3, 4, 5])
        stop.set()
        assert (await asyncio.wait_for(task, 60)).records == 6
        assert (await client.describe_cursor("zombies", "zombie")).offset == 6


@on_loop
async def test_only_what_is_wanted_is_handled_and_the_cursor_passes_over_the_rest(
    server: ServerProcess,
) -> None:
    handled: list[tuple[str, bytes | None]] = []

    async def handler(message: Message) -> None:
        handled.append((message.subject, message.key))

    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("wanted", "wanted.>")
        for number in range(40):
            subject = "wanted.eu" if number % 2 else "wanted.us.east"
            await client.publish(subject, b"", key=b"k%d" % (number % 4))
        done = await client.process(
            "wanted", handler, cursor="eu", stop="latest", filter="wanted.*", key="k3"
        )
        assert done.records == len(handled) == 10
        assert set(handled) == {("wanted.eu", b"k3")}
        # Record 39 is wanted; so are none behind the next ones.
        await client.publish("wanted.us.east", b"")
        none = await client.process("wanted", handler, cursor="eu", stop="latest", filter="no.*")
        assert none.records == 0
        assert (await client.describe_cursor("eu", "wanted")).lag == 0
        with pytest.raises(InvalidRequestError, match=r"subject 'a\.\.b'"):
            await client.process("wanted", handler, cursor="eu", filter="a..b")


@on_loop
async def test_members_that_want_a_part_pass_over_the_rest(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was passed over is known when a fetch that waits for more ends.
    monkeypatch.setattr(consumers, "WAIT_SECONDS", 0.5)
    handled: list[str] = []
    stop = asyncio.Event()

    async def handler(message: Message) -> None:
        handled.append(message.subject)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_group("parts", "parts.>", streams=2)
        for number in range(40):
            await client.publish(f"parts.{number % 4}", b"", key=b"k%d" % number)
        task = asyncio.create_task(
            client.process("parts", handler, group="some", filter="parts.1", stop_event=stop)
        )

        async def caught_up(group: str) -> None:
            for _ in range(600):
                if [each.lag for each in await client.describe_cursors(group)] == [0, 0]:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(f"{group} does not pass over what it does not want")

        await until(lambda: len(handled) == 10)
        # What is not wanted comes, is passed over, and is committed as done.
        for number in range(20):
            await client.publish("parts.0", b"", key=b"k%d" % number)
        await caught_up("some")
        stop.set()
        assert ((await task).records, set(handled)) == (10, {"parts.1"})
        member = client.consume_group("parts", "readers", filter="parts.2")
        async with member:
            assert {(await anext(member)).subject for _ in range(10)} == {"parts.2"}
            waiting = asyncio.ensure_future(anext(member))
            await caught_up("readers")
            waiting.cancel()


@on_loop
async def test_records_that_were_removed_are_passed_over_only_where_that_is_wanted(
    server: ServerProcess,
) -> None:
    release, stop = asyncio.Event(), asyncio.Event()
    handled: set[int] = set()

    async def handler(message: Message) -> None:
        await release.wait()
        handled.add(message.offset)

    async with AsyncClient(server.grpc, timeout=60) as client:
        await prepare(client, "purged")
        task = asyncio.create_task(
            client.process(
                "purged",
                handler,
                cursor="p",
                outstanding_max=5,
                on_reset="earliest",
                stop_event=stop,
            )
        )
        await until(lambda: len(client._consumers) == 1)
        [consumer] = client._consumers
        await until(lambda: consumer._ahead is not None)  # What there was has been fetched.
        for _ in range(40):
            await client.publish("purged.x", b"removed")
        start = await client.purge_stream("purged")
        for _ in range(5):
            await client.publish("purged.x", b"kept")
        release.set()
        await until(lambda: set(range(start, start + 5)) <= handled)
        assert set(range(RECORDS)) <= handled
        stop.set()
        await asyncio.wait_for(task, 60)
        assert (await client.describe_cursor("p", "purged")).offset == start + 5


@on_loop
async def test_mistakes_are_said_before_a_record_is_touched(server: ServerProcess) -> None:
    async def handler(message: Message) -> None:
        raise AssertionError("it was called")

    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("wrong", "wrong.>")
        await client.publish("wrong.x", b"")
        for options, error, text in (
            ({}, InvalidRequestError, "either cursor=NAME or group=NAME"),
            ({"cursor": "p", "group": "g"}, InvalidRequestError, "either cursor"),
            ({"cursor": "p", "retry": 3}, TypeError, "unknown setting 'retry'"),
            ({"cursor": "p", "concurrency": 0}, InvalidRequestError, "concurrency is 0"),
            ({"cursor": "p", "retries": -1}, InvalidRequestError, "retries is -1"),
            ({"cursor": "p", "instance": "a"}, InvalidRequestError, "are for groups"),
            ({"group": "g", "stop": "latest"}, InvalidRequestError, "has no stop"),
            ({"cursor": "p", "dead_letter": "wrong.dead"}, InvalidRequestError, "come back"),
            ({"cursor": "p", "dead_letter": "nobody"}, NoStreamError, "would be lost"),
        ):
            with pytest.raises(error, match=text):
                await client.process("wrong", handler, **options)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a function of a Message, not 'handler'"):
            await client.process("wrong", "handler", cursor="p", dead_letter="d")  # type: ignore[arg-type]

        async def wrong(message: Message) -> int:
            return 5

        with pytest.raises(InvalidRequestError, match="returns None, an Output or a list"):
            await client.process("wrong", wrong, cursor="p", retries=0)


def test_threads_handle_records_of_a_client(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("threads", "threads.>")
        client.create_stream("threads-out", "out.threads")
        for number in range(30):
            client.publish("threads.x", b"%d" % number, key=f"k{number % 3}")
        names = set()
        by_key: dict[bytes, list[int]] = defaultdict(list)

        def handler(message: Message) -> Output:
            names.add(threading.current_thread().name)
            by_key[message.key].append(message.offset)
            client.publish("out.threads", b"by hand")
            return Output("out.threads", message.value)

        done = client.process("threads", handler, cursor="p", stop="latest", concurrency=3)
        assert done.records == 30
        assert all(offsets == sorted(offsets) for offsets in by_key.values())
        assert all(name.startswith("jetstream-handler") for name in names)
        assert client.offset_at("threads-out", "latest") == 60

        async def wrong(message: Message) -> None: ...

        with pytest.raises(InvalidRequestError, match=r"AsyncClient\.process"):
            client.process("threads", wrong, cursor="p")

        stop = threading.Event()

        def stops(message: Message) -> None:
            stop.set()
            raise StopIteration

        client.seek_cursor("p", "threads", 0)
        stopped = client.process("threads", stops, cursor="p", stop_event=stop, retries=1000)
        assert stopped.records == 0
        assert client.describe_cursor("p", "threads").offset == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(server: ServerProcess, number: signal.Signals) -> None:
    name = f"signal-{number.name.lower()}"
    with Client(server.grpc, timeout=60) as client:
        client.create_stream(name, f"{name}.>")
        for _ in range(30):
            client.publish(f"{name}.x", b"")
        module = "tests.integration.signalled_worker"
        command = [sys.executable, "-m", module, server.grpc, name, str(int(number))]
        worker = fork_server.run(command, timeout=120)
        assert (worker.returncode, worker.stderr) == (0, "")
        records = int(worker.stdout)
        assert records >= 5
        assert client.describe_cursor("p", name).offset == records


def test_a_worker_that_is_killed_anywhere_loses_nothing_and_doubles_nothing(
    server: ServerProcess,
) -> None:
    part, parts, keys = 80, 5, 7

    def publish(number: int) -> None:
        numbers = range(number * part, (number + 1) * part)
        with client.publisher("kills.x") as publisher:
            publisher.publish_many(
                [b"%d" % n for n in numbers], [b"k%d" % (n % keys) for n in numbers]
            )

    with Client(server.grpc, timeout=60) as client:
        client.create_stream("kills", "kills.>")
        client.create_stream("kills-out", "out.kills")
        command = [sys.executable, "-m", "tests.integration.process_worker", server.grpc]
        for number in range(parts - 1):
            publish(number)
            wanted = client.offset_at("kills-out", "latest") + random.randint(1, part // 2)
            worker = fork_server.start([*command, "kills", "out.kills"], stdout=1, stderr=2)
            try:
                deadline = time.monotonic() + 120
                while client.offset_at("kills-out", "latest") < wanted:
                    assert time.monotonic() < deadline, "it writes nothing"
                    time.sleep(0.005)
            finally:
                worker.kill()
                worker.wait()
        publish(parts - 1)
        done = None
        while done is None:
            # A commit of the last one that was killed may still be on its way.
            with contextlib.suppress(PreconditionFailedError):
                done = client.process("kills", copied_to("out.kills"), cursor="p", stop="latest")
        assert done.records >= part
        stored = list(client.consume("kills-out", stop="latest"))
        assert Counter(each.value for each in stored) == Counter(
            b"%d" % n for n in range(part * parts)
        )
        for key in range(keys):
            of_key = [int(each.text or "") for each in stored if each.key == b"k%d" % key]
            assert of_key == sorted(of_key)
