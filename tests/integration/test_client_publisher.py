"""Batched publishing: order, offsets, room, limits, refusals, several streams, lost servers."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    MessageTooLargeError,
    NoStreamError,
    PreconditionFailedError,
    StreamReadonlyError,
    UnavailableError,
    UnknownOutcomeError,
)
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server


@pytest.fixture
def stream(client: Client, request: pytest.FixtureRequest) -> str:
    """A stream of the test's own, on `<name>.>`."""
    name: str = request.node.name.partition("[")[0][5:]
    client.create_stream(name, f"{name}.>")
    return name


def values(client: Client, stream: str) -> list[bytes | None]:
    return [v for m in client.consume(stream, stop="latest").batches() for v in m.values()]


def test_every_record_has_its_offset(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.eu", linger=0.5) as publisher:
        sent = [publisher.send(b"%d" % number) for number in range(5000)]
        assert sent[4321].result().offset == 4321
    assert [delivery.result(0).offset for delivery in sent] == list(range(5000))
    result = sent[7].result()
    assert (result.subject, result.stream, result.duplicate) == (f"{stream}.eu", stream, False)
    assert values(client, stream) == [b"%d" % number for number in range(5000)]
    assert len(client.fetch(stream, max_bytes=2**30).chunks) < 50


PATIENT = 3600.0
"""A linger that nobody sits through."""


@pytest.mark.parametrize("wait", ["result", "exception", "many"])
def test_who_waits_for_a_delivery_does_not_wait_for_the_linger(
    client: Client, stream: str, wait: str
) -> None:
    with client.publisher(f"{stream}.eu", linger=PATIENT) as publisher:
        if wait == "many":
            assert publisher.publish_many([b"1", b"2"]).result().count == 2
        else:
            getattr(publisher.send(b"1"), wait)()


@on_loop
async def test_who_awaits_a_delivery_does_not_wait_for_the_linger(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("awaited", "awaited.>")
        async with client.publisher("awaited.x", linger=PATIENT) as publisher:
            assert (await (await publisher.send(b"1"))).offset == 0
            assert (await (await publisher.publish_many([b"2"]))).offset == 1


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_records_keep_key_headers_and_tombstones(
    client: Client, stream: str, compression: Any
) -> None:
    subject = f"{stream}.{compression}"
    with client.publisher(subject, compression=compression) as publisher:
        publisher.send(b"plain")
        publisher.send("text", key="k", headers={"source": "web", "many": ["1", "2"]})
        publisher.send(None, key=b"\xff\x00")
        first = publisher.send(b"")
    read = list(client.fetch(stream, first.result().offset - 3))
    assert [m.value for m in read] == [b"plain", b"text", None, b""]
    assert [m.key for m in read] == [None, b"k", b"\xff\x00", None]
    assert {m.subject for m in read} == {subject}
    assert read[1].headers.multi_items() == [("source", "web"), ("many", "1"), ("many", "2")]
    assert [bool(m.header_block) for m in read] == [False, True, False, False]


def test_many_records_keep_their_header_blocks(client: Client, stream: str) -> None:
    blocks = [b"NATS/1.0\r\na: %d\r\n\r\n" % number if number % 2 else b"" for number in range(4)]
    values = [b"%d" % number for number in range(4)]
    with client.publisher(f"{stream}.x", max_bytes=40) as publisher:
        first = publisher.publish_many(values, header_blocks=blocks).result(60).offset
        with pytest.raises(InvalidRequestError, match="4 values and 1 header"):
            publisher.publish_many(values, header_blocks=[b""])
    read = list(client.fetch(stream, first))
    assert [(m.value, m.header_block) for m in read] == list(zip(values, blocks, strict=True))


def test_many_records_at_once_are_one_future_a_batch(client: Client, stream: str) -> None:
    many = [b"%08d" % number for number in range(50_000)]
    keys: list[bytes | None] = [b"%d" % (number % 10) for number in range(50_000)]
    with client.publisher(f"{stream}.x") as publisher:
        publisher.send(b"before")
        delivery = publisher.publish_many(many, keys)
        publisher.send(b"after")
        result = delivery.result(60)
    assert 1 < len(delivery) < 20
    assert [part.result().count for part in delivery] == [part.count for part in result.parts]
    assert (result.count, result.offset) == (50_000, 1)
    assert result.offsets == list(range(1, 50_001))
    assert values(client, stream) == [b"before", *many, b"after"]
    assert client.fetch(stream, 40_001, max_messages=1)[0].key == b"0"


def test_a_few_records_at_once_share_a_batch_with_others(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x", linger=30) as publisher:
        parts = [publisher.publish_many([b"a", None, b"c"]) for _ in range(3)]
    assert [part.result(0).offset for part in parts] == [0, 3, 6]
    assert len(client.fetch(stream).chunks) == 1
    assert publisher.publish_many([]).result().count == 0


def test_without_linger_each_call_is_a_batch(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x", linger=0) as publisher:
        publisher.publish_many([b"1", b"2", b"3"])
        publisher.send(b"4")
        publisher.publish_many([b"5", b"6"])
    assert [len(chunk) for chunk in client.fetch(stream).chunks] == [3, 1, 2]


def test_threads_share_a_publisher_and_each_keeps_its_order(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x") as publisher:

        def work(name: int) -> None:
            for number in range(3000):
                publisher.send(b"%d/%d" % (name, number))

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    read = values(client, stream)
    for name in range(4):
        mine = [v for v in read if v is not None and v.startswith(b"%d/" % name)]
        assert mine == [b"%d/%d" % (name, number) for number in range(3000)]


def test_a_full_buffer_makes_callers_wait_not_memory_grow(client: Client, stream: str) -> None:
    limit = 64 * 1024
    with client.publisher(f"{stream}.x", max_bytes=16 * 1024, buffer_bytes=limit) as publisher:
        most = 0
        for number in range(3000):
            publisher.send(b"%0128d" % number)
            most = max(most, publisher.buffered_bytes)
    assert 0 < most <= limit
    assert publisher.buffered_bytes == 0
    assert values(client, stream) == [b"%0128d" % number for number in range(3000)]


def test_what_no_batch_holds_is_refused_at_once(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x", max_bytes=8 * 1024 * 1024) as publisher:
        with pytest.raises(MessageTooLargeError):
            publisher.send(bytes(1024 * 1024))
        with pytest.raises(MessageTooLargeError):
            publisher.publish_many([b"1", bytes(1024 * 1024)])
        largest = publisher.send(bytes(1000 * 1024))
        assert largest.result(60).offset == 0


@pytest.mark.parametrize(
    "headers", [{"Nats-Msg-Id": "1"}, {"Jetstream-Key": "k"}, {"Nats-Expected-Stream": "s"}]
)
def test_headers_for_the_server_cannot_travel_in_a_batch(
    client: Client, stream: str, headers: dict[str, str]
) -> None:
    with client.publisher(f"{stream}.x") as publisher:
        with pytest.raises(InvalidRequestError, match="cannot travel in a batch"):
            publisher.send(b"1", headers=headers)
        publisher.send(b"2", headers={"Nats-Other": "fine"}).result(60)


WRONG: list[Any] = [5, 1.5, True, [65, 66], (b"a",), {"id": 1}, datetime.now(UTC), range(3)]
"""Some of which `bytes` would take."""


def test_what_is_neither_bytes_nor_text_is_refused_wherever_it_is_given(
    client: Client, stream: str
) -> None:
    subject = f"{stream}.x"
    with client.publisher(subject) as publisher:
        for wrong in WRONG:
            for attempt in (
                lambda wrong=wrong: client.publish(subject, wrong),
                lambda wrong=wrong: client.publish(subject, b"v", key=wrong),
                lambda wrong=wrong: publisher.send(wrong),
                lambda wrong=wrong: publisher.send(b"v", wrong),
                lambda wrong=wrong: publisher.publish_many([b"v", wrong]),
                lambda wrong=wrong: publisher.publish_many([b"v"], [wrong]),
            ):
                name = type(wrong).__name__
                with pytest.raises(TypeError, match=rf"must be bytes, .*, str or None, not {name}"):
                    attempt()
        publisher.send(b"end").result(60)
    assert [message.value for message in client.fetch(stream)] == [b"end"]


def test_each_kind_of_bytes_and_text_is_stored_alike_whichever_way_it_is_given(
    client: Client, stream: str
) -> None:
    subject = f"{stream}.x"
    kinds: list[Any] = [b"\xc3\xa9", bytearray(b"\xc3\xa9"), memoryview(b"\xc3\xa9"), "é"]
    with client.publisher(subject) as publisher:
        for each in kinds:
            client.publish(subject, each, key=each)
            publisher.send(each, each).result(60)
        publisher.publish_many(kinds, kinds).result(60)
    stored = [(message.key, message.value) for message in client.fetch(stream)]
    assert stored == [(b"\xc3\xa9", b"\xc3\xa9")] * 12


def test_many_records_may_come_from_a_generator(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x") as publisher:
        many = publisher.publish_many((str(each) for each in range(3)), iter("abc"))
        assert many.result(30).count == 3
        blocks = (b"" for _ in range(2))
        assert (
            publisher.publish_many(iter([b"3", b"4"]), header_blocks=blocks).result(30).count == 2
        )
    with client.publisher(f"{stream}.x", value_serializer=str) as publisher:
        publisher.publish_many(range(5, 7)).result(30)
        with pytest.raises(TypeError, match="one value a record"):
            publisher.publish_many({"id": 1})  # type: ignore[arg-type]
    assert client.fetch(stream).values() == [b"%d" % each for each in range(7)]


def test_wrong_values_are_refused_before_they_spoil_a_batch(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x") as publisher:
        for alone in ("text", b"bytes"):
            with pytest.raises(TypeError, match="one value a record"):
                publisher.publish_many(alone)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="not valid Unicode"):
            publisher.publish_many(["\ud800"])
        with pytest.raises(InvalidRequestError, match="2 values and 1 keys"):
            publisher.publish_many([b"1", b"2"], [b"k"])
        assert publisher.send(b"fine").result(60).offset == 0


def test_a_subject_without_a_stream_is_said_at_once(client: Client) -> None:
    with pytest.raises(NoStreamError):
        client.publisher("nobody.listens")
    with pytest.raises(InvalidRequestError):
        client.publisher("wild.*")


def test_several_streams_of_a_subject_all_store_each_batch(client: Client, stream: str) -> None:
    client.create_stream(f"{stream}-2", f"{stream}.*")
    client.publish(f"{stream}.x", b"earlier")
    with client.publisher(f"{stream}.x") as publisher:
        result = publisher.send(b"1").result(60)
        publisher.publish_many([b"2", b"3"])
    assert sorted(ack.stream for ack in result.acks) == [stream, f"{stream}-2"]
    for name in (stream, f"{stream}-2"):
        assert values(client, name) == [b"earlier", b"1", b"2", b"3"]


def test_a_stream_made_meanwhile_is_noticed(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x") as publisher:
        assert len(publisher.send(b"1").result(60).acks) == 1
        client.create_stream(f"{stream}-2", f"{stream}.*")
        deadline = time.monotonic() + 60
        while len(publisher.send(b"2").result(60).acks) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert values(client, stream)[0] == b"1"
    assert values(client, f"{stream}-2")[-1] == b"2"


def test_a_stream_with_acks_by_envelope_acknowledges_batches(client: Client) -> None:
    client.create_stream("enveloped", "enveloped.>", acks="envelope")
    with client.publisher("enveloped.x") as publisher:
        assert publisher.send(b"1").result(60).offset == 0


def test_streams_of_a_group_cannot_have_a_publisher(client: Client) -> None:
    for name in ("shared-a", "shared-b"):
        client.create_stream(name, "shared.>", group="g")
    with pytest.raises(InvalidRequestError, match="group"):
        client.publisher("shared.x")


def test_a_stream_deleted_meanwhile_ends_the_publisher(client: Client, stream: str) -> None:
    publisher = client.publisher(f"{stream}.x")
    publisher.send(b"1").result(60)
    client.delete_stream(stream)
    with pytest.raises((NoStreamError, UnknownOutcomeError)):
        publisher.send(b"2").result(60)
    with pytest.raises(NoStreamError):
        publisher.send(b"3")
    publisher.close()


def test_a_failure_nobody_asked_about_is_raised_at_the_end(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc) as client:
        client.create_stream("orders", "orders.>")
        publisher = client.publisher("orders.x", delivery_timeout=0.5)
        own_server.kill()
        asked = publisher.send(b"2")
        with pytest.raises((UnavailableError, UnknownOutcomeError)):
            asked.result(60)
        publisher.flush()
        unasked = publisher.send(b"3")
        with pytest.raises((UnavailableError, UnknownOutcomeError)):
            publisher.flush()
        assert unasked.done()
        publisher.close()


def test_a_failure_nobody_asked_about_is_raised_after_any_number_of_others(
    client: Client, stream: str
) -> None:
    client.set_stream_readonly(stream)
    publisher = client.publisher(f"{stream}.x", linger=0)
    for _ in range(120):  # More than are remembered.
        with pytest.raises(StreamReadonlyError):
            publisher.send(b"seen").result(60)
    publisher.send(b"unseen")
    with pytest.raises(StreamReadonlyError):
        publisher.flush()
    publisher.send(b"unseen again")
    with pytest.raises(StreamReadonlyError):
        publisher.close()


def test_a_failure_nobody_asked_about_is_raised_though_those_before_it_are_seen_later(
    client: Client, stream: str
) -> None:
    client.set_stream_readonly(stream)
    publisher = client.publisher(f"{stream}.x", linger=0)
    deliveries = [publisher.send(b"seen") for _ in range(150)]  # More than are remembered.
    publisher.send(b"unseen")
    publisher.send(b"seen").exception(30)
    for delivery in deliveries:
        delivery.exception(30)
    with pytest.raises(StreamReadonlyError):
        publisher.flush()
    publisher.flush()
    publisher.close()


def test_who_gives_up_waiting_has_not_seen_the_failure(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc) as client:
        client.create_stream("orders", "orders.>")
        publisher = client.publisher("orders.x", delivery_timeout=1.0)
        publisher.flush()
        own_server.kill()
        for wait in ("result", "exception"):
            while True:
                delivery = publisher.send(b"1")
                try:
                    getattr(delivery, wait)(0.01)
                except TimeoutError:
                    break
                except (UnavailableError, UnknownOutcomeError):
                    pass  # The machine stood still for longer than the delivery may take.
            with pytest.raises((UnavailableError, UnknownOutcomeError)):
                publisher.flush()
            assert delivery.exception(0) is not None
        publisher.close()


@on_loop
async def test_who_is_cancelled_while_it_waits_has_not_seen_the_failure(
    own_server: ServerProcess,
) -> None:
    await asyncio.to_thread(own_server.start)
    async with AsyncClient(own_server.grpc) as client:
        await client.create_stream("orders", "orders.>")
        publisher = client.publisher("orders.x", delivery_timeout=1.0)
        while True:
            try:
                await (await publisher.send(b"0"))
                break
            except (UnavailableError, UnknownOutcomeError):
                pass  # The machine stood still for longer than the delivery may take.
        own_server.kill()
        while True:
            delivery = await publisher.send(b"1")
            try:
                await asyncio.wait_for(delivery, 0.01)
            except TimeoutError:
                break
            except (UnavailableError, UnknownOutcomeError):
                pass  # The machine stood still for longer than the delivery may take.
        with pytest.raises((UnavailableError, UnknownOutcomeError)):
            await publisher.aclose()


def test_what_is_not_acknowledged_in_time_is_unknown_and_the_next_goes_on(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.>")
        with client.publisher("orders.x", delivery_timeout=2.0) as publisher:
            publisher.flush()
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(UnknownOutcomeError, match="may or may not have been stored"):
                    publisher.send(b"perhaps").result(60)
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
        with client.publisher("orders.x") as publisher:
            last = publisher.send(b"surely").result(60).offset
        stored = values(client, "orders")
        assert stored[last] == b"surely"
        assert stored[:last] in ([], [b"perhaps"])  # However often it was sent.


def test_closing_the_client_sends_what_its_publishers_hold(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(server.grpc)
    client.create_stream("closing", "closing.>")
    publisher = client.publisher("closing.x", linger=30)
    delivery = publisher.send(b"1")
    client.close()
    assert delivery.result(0).offset == 0
    assert "the publisher to" not in caplog.text
    with pytest.raises(UnavailableError, match="closed"):
        publisher.send(b"2")
    publisher.close()


def test_a_fork_is_told_to_make_its_own(client: Client, stream: str) -> None:
    with client.publisher(f"{stream}.x") as publisher, pytest.MonkeyPatch.context() as fork:
        # As it is in a fork, without leaving one behind in this suite.
        fork.setattr(client._thread, "_process", -1)
        with pytest.raises(InvalidRequestError, match="fork"):
            publisher.send(b"1")
        with pytest.raises(InvalidRequestError, match="fork"):
            publisher.publish_many([b"1"])


@on_loop
async def test_the_asynchronous_publisher(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("async-publisher", "async-publisher.>")
        async with client.publisher("async-publisher.x", buffer_bytes=300_000) as publisher:
            sent = [await publisher.send(b"%d" % number) for number in range(20_000)]
            many = await publisher.publish_many([b"x"] * 10)
            assert (await sent[19_999]).offset == 19_999
            assert (await many).offsets == list(range(20_000, 20_010))
        assert [delivery.result(0).offset for delivery in sent] == list(range(20_000))


@on_loop
async def test_the_largest_batch_is_known_once_the_publisher_has_started(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("largest", "largest.>")
        publisher = client.publisher("largest.x", max_bytes=1000)
        with pytest.raises(InvalidRequestError, match="not known yet"):
            _ = publisher.batch_bytes
        async with publisher:
            assert publisher.batch_bytes == 1000


@on_loop
async def test_who_gives_up_waiting_for_a_delivery_stops_nothing(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("patient", "patient.>")
        async with client.publisher("patient.x") as publisher:
            delivery = await publisher.send(b"1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await delivery
            assert (await delivery).offset == 0


def test_a_message_id_is_stored_once(client: Client, stream: str) -> None:
    first = client.publish(f"{stream}.x", b"1", msg_id="a")
    again = client.publish(f"{stream}.x", b"1", msg_id="a")
    assert (first.duplicate, again.duplicate, again.offset) == (False, True, first.offset)
    assert values(client, stream) == [b"1"]


def test_an_expected_offset_that_another_took_is_refused(client: Client, stream: str) -> None:
    assert client.publish(f"{stream}.x", b"1", expected_offset=0).offset == 0
    with pytest.raises(PreconditionFailedError):
        client.publish(f"{stream}.x", b"2", expected_offset=0)
    assert client.publish(f"{stream}.x", b"2", expected_offset=1).offset == 1
    assert values(client, stream) == [b"1", b"2"]


def test_the_same_producer_id_again_is_recognised(client: Client, stream: str) -> None:
    for attempt in (False, True):
        publisher = client.publisher(f"{stream}.x", linger=0, producer_id=77)
        with publisher:
            results = [publisher.publish_many([b"a", b"b"]).result(60) for _ in range(3)]
        assert [part.offset for part in results] == [0, 2, 4]
        assert all(part.parts[0].duplicate is attempt for part in results)
    assert values(client, stream) == [b"a", b"b"] * 3


def page_faults(pid: int) -> int:
    """How often the kernel had to give that process a page so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_batches_that_follow_each_other_cost_the_server_no_new_memory(
    client: Client, server: ServerProcess, stream: str
) -> None:
    records = [bytes(1000)] * 5000
    with client.publisher(f"{stream}.eu") as publisher:
        publisher.publish_many(records)
        publisher.flush()
        before = page_faults(server.pid)
        for _ in range(5):
            publisher.publish_many(records)
            publisher.flush()
    pages = 5 * len(records) * 1000 // os.sysconf("SC_PAGE_SIZE")
    assert page_faults(server.pid) - before < pages // 4


def test_batches_are_split_where_the_next_nats_server_takes_less(tmp_path: Path) -> None:
    sending = [b"%d " % number + b"x" * 1000 for number in range(2000)]
    with (
        NatsServer() as nats,
        running_server(tmp_path / "data", "--nats", nats.url) as server,
        Client(server.grpc, timeout=60) as client,
    ):
        client.create_stream("smaller", "smaller.>")
        with client.publisher("smaller.x", linger=0.5) as publisher:
            publisher.send(b"before").result()
            assert publisher.batch_bytes > 900_000
            nats.kill()
            # What was written to the lost connection would have an unknown outcome.
            deadline = time.monotonic() + 60
            while not client._client._publisher.why_lost:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            sent = publisher.publish_many(sending)  # Two full batches.
            nats.config = "max_payload: 64KB"
            nats.start()
            offsets = sent.result(60).offsets
            assert publisher.batch_bytes < 64 * 1024
            with pytest.raises(MessageTooLargeError):
                publisher.send(b"x" * 70_000)
            nats.kill()
            nats.config = ""
            nats.start()
            publisher.send(b"after").result()
            publisher.send(b"x" * 70_000).result()
        stored = client.fetch("smaller").values()
    assert offsets == list(range(1, 2001))
    assert stored[:-1] == [b"before", *sending, b"after"]
