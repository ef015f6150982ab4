"""The link against peers that are no nats-server: silent, hostile, or gone. Servers that are one
are in tests/integration/test_nats_connection.py."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.certificates.authority import Authority
from jetstream_protocol.errors import UnauthenticatedError, UnavailableError
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.link import (
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    READ_BYTES_OF_MANY_MAX,
    TURN_SECONDS,
    LinkEvents,
    Load,
    NatsLink,
)
from jetstream_server.ingest.nats.parser import Info, NatsProtocolError
from jetstream_server.ingest.nats.server_pool import parse_url
from tests.support.loops import eventually, on_loop
from tests.support.nats_peer import INFO, accept, peer


class Owner:
    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.complaints: list[str] = []
        self.may_feed = True

    def events(self) -> LinkEvents:
        return LinkEvents(
            before_feed=lambda: self.may_feed,
            delivered=self.deliveries.append,
            informed=lambda link, info: self.informed(info),
            complained=self.complained,
        )

    def informed(self, info: Info) -> None:
        assert isinstance(info.fields, dict)

    def complained(self, link: NatsLink, text: str) -> bool:
        self.complaints.append(text)
        return text.startswith("harmless")


def link_to(url: str, owner: Owner, **options: object) -> NatsLink:
    return NatsLink(
        owner.events(),
        parse_url(url),
        LinkOptions(**{"connect_timeout_s": 60.0, **options}),  # type: ignore[arg-type]
    )


@on_loop
async def test_a_peer_that_says_nothing_is_given_up_in_time() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(script) as url:
        link = link_to(url, Owner(), connect_timeout_s=0.1)
        with pytest.raises(UnavailableError, match="in time"):
            await link.open()
        await link.lost


@on_loop
async def test_a_peer_that_is_not_nats_is_refused() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with peer(script) as url:
        with pytest.raises(UnavailableError, match="protocol error"):
            await link_to(url, Owner()).open()


@on_loop
async def test_messages_before_the_login_are_refused() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO + b"MSG a 1 6\r\nforged\r\n")

    owner = Owner()
    async with peer(script) as url:
        with pytest.raises(UnavailableError, match="before the login"):
            await link_to(url, owner).open()
    assert owner.deliveries == []


@on_loop
async def test_bytes_before_tls_are_not_taken_for_bytes_after_it() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required":true} \r\nMSG a 1 6\r\nfor')

    async with peer(script) as url:
        link = link_to(url, Owner(), tls=ssl.create_default_context())
        with pytest.raises(NatsProtocolError, match="TLS must begin"):
            await link.open()


@on_loop
async def test_a_login_that_is_refused_is_an_authentication_error() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readline()
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()

    async with peer(script) as url:
        with pytest.raises(UnauthenticatedError, match="Authorization Violation"):
            await link_to(url, Owner()).open()


@on_loop
async def test_a_pong_nobody_asked_for_ends_the_link() -> None:
    opened = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await opened.wait()
        writer.write(b"PONG\r\nMSG a 1 1\r\nx\r\n")

    owner = Owner()
    async with peer(script) as url:
        link = link_to(url, owner)
        await link.open()
        opened.set()
        assert "an unexpected PONG" in await link.lost
    assert owner.deliveries == []  # nothing after it is believed


@on_loop
async def test_nothing_is_delivered_once_the_link_is_given_up() -> None:
    async with peer(accept) as url:
        owner = Owner()
        link = link_to(url, owner)
        await link.open()
        link.close("done")
        # As a TLS transport may still do, which has decrypted more than was asked for.
        message = b"MSG a 1 1\r\nx\r\n"
        link.get_buffer(-1)[: len(message)] = message
        link.buffer_updated(len(message))
        await link.lost
    assert owner.deliveries == []


@on_loop
async def test_pings_are_answered_and_barriers_keep_their_order() -> None:
    seen: list[bytes] = []
    looked = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(b"PING\r\n")
        while len(seen) < 3:
            seen.append(await reader.readline())
        writer.write(b"MSG a 1 1\r\n1\r\nPONG\r\nMSG a 1 1\r\n2\r\n")
        await looked.wait()
        writer.write(b"PONG\r\n")

    owner = Owner()
    async with peer(script) as url:
        link = link_to(url, owner)
        await link.open()
        first, second = link.ping(), link.ping()
        await first
        assert not second.done()
        assert [each.values for each in owner.deliveries] == [[b"1"], [b"2"]]
        looked.set()
        await second
        link.close("done")
        assert await link.lost == "done"
    assert sorted(seen) == [b"PING\r\n", b"PING\r\n", b"PONG\r\n"]


@on_loop
async def test_what_waits_for_a_pong_fails_when_the_link_is_lost_and_afterwards() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.close()

    async with peer(script) as url:
        link = link_to(url, Owner())
        await link.open()
        with pytest.raises(UnavailableError, match="closed by the server"):
            await link.ping()
        with pytest.raises(UnavailableError):
            await link.ping()
        assert await link.lost == "closed by the server"


@on_loop
async def test_the_last_error_of_the_server_is_the_reason_unless_it_was_harmless() -> None:
    opened = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await opened.wait()
        writer.write(b"-ERR 'Slow Consumer'\r\n-ERR 'harmless'\r\n")
        writer.close()

    owner = Owner()
    async with peer(script) as url:
        link = link_to(url, owner)
        await link.open()
        opened.set()
        assert await link.lost == "Slow Consumer"
    assert owner.complaints == ["Slow Consumer", "harmless"]


@on_loop
async def test_a_read_that_may_not_be_fed_has_no_effect_and_ends_the_link() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.write(b"MSG a 1 1\r\n1\r\n-ERR 'x'\r\nPONG\r\n")

    owner = Owner()
    async with peer(script) as url:
        link = link_to(url, owner)
        await link.open()
        owner.may_feed = False
        with pytest.raises(UnavailableError):
            await link.ping()
        assert await link.lost == "not allowed to receive any more"
    assert owner.deliveries == []
    assert owner.complaints == []


@on_loop
async def test_a_peer_that_answers_no_ping_is_stale_but_one_that_sends_anything_is_not() -> None:
    talking = True

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        while talking:
            writer.write(b"+OK\r\n")
            await asyncio.sleep(0.02)

    async with peer(script) as url:
        link = link_to(url, Owner(), ping_interval_s=0.05)
        await link.open()
        await asyncio.sleep(0.4)
        assert not link.lost.done()
        talking = False
        assert await link.lost == "stale: the server answers no PING"


@on_loop
async def test_connect_says_who_we_are_and_what_we_understand() -> None:
    lines: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await accept(reader, writer))

    async with peer(script) as url:
        link = link_to(url.replace("://", "://me:p%22w@"), Owner(), name="n-1", version="1.2")
        await link.open()
        link.close("done")
        await link.lost
    (line,) = lines
    for part in (
        b'"verbose":false', b'"headers":true', b'"no_responders":true', b'"protocol":1',
        b'"name":"n-1"', b'"version":"1.2"', b'"user":"me"', b'"pass":"p\\"w"',
    ):  # fmt: skip
        assert part in line


@on_loop
async def test_the_first_write_of_a_tick_leaves_at_once_and_the_others_together() -> None:
    received = bytearray()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        while chunk := await reader.read(65536):
            received.extend(chunk)

    lines = [b"PUB a 1\r\n%d\r\n" % (number % 10) for number in range(100)]
    async with peer(script) as url:
        link = link_to(url, Owner())
        await link.open()
        await asyncio.sleep(0)
        for number, line in enumerate(lines):
            link.write(line)
            assert link.write_buffer_size == number * len(line)
        await eventually(lambda: bytes(received) == b"".join(lines))
        link.close("done")
        await link.lost


@contextmanager
def flood() -> Iterator[str]:
    """A NATS server in a thread that sends messages as fast as they are taken; its URL."""
    messages = b"MSG a 1 8\r\nflooding\r\n" * 10_000

    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(INFO)
            while not sock.recv(4096).endswith(b"PING\r\n"):
                pass
            sock.sendall(b"PONG\r\n")
            assert sock.recv(4096).startswith(b"SUB")
            try:
                while True:
                    sock.sendall(messages)
            except ConnectionError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@on_loop
async def test_a_flood_that_takes_long_to_store_leaves_the_loop_to_others_after_every_read() -> (
    None
):
    reads: list[tuple[int, int]] = []  # of each: the loop's turn, and messages
    turn = 0

    def slow(delivery: Delivery) -> None:
        reads.append((turn, len(delivery)))
        time.sleep(0.05)  # The sender fills the socket anew meanwhile.

    events = replace(Owner().events(), delivered=slow)
    with flood() as url:
        link = NatsLink(events, parse_url(url), LinkOptions(connect_timeout_s=60.0))
        await link.open()
        link.write(b"SUB a 1\r\n")
        while len(reads) < 40:
            turn += 1
            await asyncio.sleep(0)
        link.abort("seen enough")
        await link.lost
    turns = [number for number, _ in reads]
    assert len(set(turns)) == len(turns), "read again before the loop could do anything else"
    message = len(b"MSG a 1 8\r\nflooding\r\n")
    assert reads[-1][1] <= READ_BYTES_MIN // message + 1


def many(count: int) -> bytes:
    """One message for each of so many subscriptions."""
    return b"".join(b"MSG a %d 1\r\nx\r\n" % number for number in range(1, count + 1))


class Clock:
    """Moves only when somebody works. Of a link that `opened` makes."""

    def __init__(self) -> None:
        self.seconds = 0.0


async def opened(url: str, events: LinkEvents, clock: Clock) -> NatsLink:
    options = LinkOptions(connect_timeout_s=60.0, seconds=lambda: clock.seconds)
    link = NatsLink(events, parse_url(url), options)
    await link.open()
    return link


async def given(link: NatsLink, read: bytes) -> None:
    """As if the transport had read these bytes."""
    link.get_buffer(-1)[: len(read)] = read
    link.buffer_updated(len(read))


@on_loop
async def test_many_deliveries_of_one_read_leave_the_loop_to_others_and_keep_their_order() -> None:
    delivered: list[tuple[int, int]] = []  # of each: the loop's turn, and its subscription
    turn = 0
    clock = Clock()

    def slow(delivery: Delivery) -> None:
        delivered.append((turn, delivery.sid))
        clock.seconds += TURN_SECONDS / 4

    events = replace(Owner().events(), delivered=slow)
    async with peer(accept) as url:
        link = await opened(url, events, clock)
        barrier = link.ping()
        await given(link, many(40) + b"PONG\r\n")
        while not barrier.done():
            turn += 1
            await asyncio.sleep(0)
        assert [sid for _, sid in delivered] == list(range(1, 41))
        turns = [number for number, _ in delivered]
        assert len(set(turns)) >= 5
        assert max(map(turns.count, turns)) <= 5
        link.close("done")
        await link.lost


@on_loop
async def test_the_rest_of_a_read_has_no_effect_once_it_may_not_be_fed() -> None:
    owner, clock = Owner(), Clock()

    def slow(delivery: Delivery) -> None:
        owner.deliveries.append(delivery)
        clock.seconds += TURN_SECONDS
        owner.may_feed = len(owner.deliveries) < 2

    events = replace(owner.events(), delivered=slow)
    async with peer(accept) as url:
        link = await opened(url, events, clock)
        await given(link, many(10))
        assert await link.lost == "not allowed to receive any more"
    assert len(owner.deliveries) == 2


@on_loop
async def test_what_was_read_is_delivered_although_the_server_has_closed_meanwhile() -> None:
    owner, clock = Owner(), Clock()

    def slow(delivery: Delivery) -> None:
        owner.deliveries.append(delivery)
        clock.seconds += TURN_SECONDS

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.write(many(10))
        await writer.drain()
        writer.transport.abort()

    events = replace(owner.events(), delivered=slow)
    async with peer(script) as url:
        link = await opened(url, events, clock)
        link.write(b"SUB a 1\r\n")
        await link.lost
        assert len(owner.deliveries) == 10


@on_loop
async def test_a_delivery_that_fails_ends_the_link_in_a_later_turn_too_and_costs_no_other_one() -> (
    None
):
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: problems.append(context["exception"])
    )
    delivered: list[int] = []
    clock, bug = Clock(), RuntimeError("a bug")

    def slow(delivery: Delivery) -> None:
        clock.seconds += TURN_SECONDS
        if delivery.sid == 5:
            raise bug
        delivered.append(delivery.sid)

    events = replace(Owner().events(), delivered=slow)
    async with peer(accept) as url:
        link = await opened(url, events, clock)
        await given(link, many(10))
        assert await link.lost == "RuntimeError: a bug"
    assert delivered == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert problems == [bug]


@on_loop
async def test_what_is_left_when_the_connection_ends_is_delivered_in_turns() -> None:
    delivered: list[tuple[int, int]] = []  # of each: the loop's turn, and its subscription
    turn = 0
    clock = Clock()

    def slow(delivery: Delivery) -> None:
        delivered.append((turn, delivery.sid))
        clock.seconds += TURN_SECONDS

    events = replace(Owner().events(), delivered=slow)
    async with peer(accept) as url:
        link = await opened(url, events, clock)
        await given(link, many(10))
        link.connection_lost(ConnectionResetError("by peer"))
        while not link.lost.done():
            turn += 1
            await asyncio.sleep(0)
        assert link.lost.result() == "ConnectionResetError: by peer"
        assert [sid for _, sid in delivered] == list(range(1, 11))
        assert len({number for number, _ in delivered}) == 10
        link.abort("done")


@on_loop
async def test_a_server_is_heard_while_what_it_sent_is_being_delivered() -> None:
    heard: list[bool] = []
    clock = Clock()
    loop = asyncio.get_running_loop()

    def slow(delivery: Delivery) -> None:
        clock.seconds += TURN_SECONDS

    events = replace(Owner().events(), delivered=slow)
    async with peer(accept) as url:
        link = await opened(url, events, clock)
        await given(link, many(10))
        left = loop.time() + 0.05
        while loop.time() < left:  # As if each of the deliveries took so long.
            pass
        for _ in range(3):
            heard.append(link.heard_within(0.02))
            await asyncio.sleep(0)
        assert heard == [True, True, True]
        await eventually(lambda: not link.heard_within(0.02))
        link.abort("done")
        await link.lost


def test_the_next_read_is_smaller_after_a_long_step_and_larger_for_many_subscriptions() -> None:
    full, fast, slow = READ_BYTES_MAX, TURN_SECONDS / 10, 3 * TURN_SECONDS
    assert Load(True, 1, 1_000, slow).read_bytes(full) == full // 2
    assert Load(True, 1, 1_000, slow).read_bytes(READ_BYTES_MIN) == READ_BYTES_MIN
    assert Load(True, 1, 1_000, TURN_SECONDS).read_bytes(full) == full
    assert Load(False, 1, 1_000, fast).read_bytes(full // 2) == full
    # Few subscriptions: a larger read would not fit into the processor's cache.
    assert Load(True, 1, 1_300, fast).read_bytes(full) == full
    assert Load(True, 1, 1, fast).read_bytes(full) == full
    # Larger reads end where one subscription takes over, also if its steps are long.
    assert Load(True, 1, 20_000, TURN_SECONDS).read_bytes(READ_BYTES_OF_MANY_MAX) == (
        READ_BYTES_OF_MANY_MAX // 2
    )
    # Many: an append for each message takes longer than the messages.
    assert Load(True, 1_000, 1_300, fast).read_bytes(full) == 2 * full
    assert Load(True, 1_000, 9_000, fast).read_bytes(READ_BYTES_OF_MANY_MAX) == (
        READ_BYTES_OF_MANY_MAX
    )
    assert Load(False, 1_000, 1_300, fast).read_bytes(full) == full
    assert Load(True, 10, 9_000, fast).read_bytes(READ_BYTES_OF_MANY_MAX) == (
        READ_BYTES_OF_MANY_MAX // 2
    )


def test_what_is_usual_needs_no_other_size_of_the_next_read() -> None:
    sizes = (READ_BYTES_MIN, READ_BYTES_MAX, 2 * READ_BYTES_MAX, READ_BYTES_OF_MANY_MAX)
    longest = (0.0, TURN_SECONDS / 4, TURN_SECONDS / 2, TURN_SECONDS, 3 * TURN_SECONDS)
    loads = [
        Load(is_full, events, 1_300, seconds)
        for is_full in (False, True)
        for events in (1, 1_000)
        for seconds in longest
    ]
    usual = [(load, size) for load in loads for size in sizes if load.is_usual(size)]
    assert Load(False, 1, 1, 0.0).is_usual(READ_BYTES_MAX)
    assert all(load.read_bytes(size) == size for load, size in usual)


@on_loop
async def test_a_flood_on_many_subjects_is_read_in_larger_and_larger_pieces() -> None:
    events = replace(Owner().events(), delivered=lambda delivery: None)
    async with peer(accept) as url:
        link = await opened(url, events, Clock())
        wire, taken = many(50_000) * 10, 0
        while len(link.get_buffer(-1)) < READ_BYTES_OF_MANY_MAX:
            room = len(link.get_buffer(-1))
            assert taken + room < len(wire)
            await given(link, wire[taken : taken + room])
            taken += room
        link.close("done")
        await link.lost


@on_loop
async def test_a_flood_over_tls_is_read_in_larger_and_larger_pieces_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*authority.issue("nats", hosts=("127.0.0.1",), serves=True))
    trusting = ssl.create_default_context(cafile=str(authority.certificate_file))
    clock, sizes, is_open = Clock(), [0], asyncio.Event()

    def delivered(delivery: Delivery) -> None:
        clock.seconds += TURN_SECONDS / 20  # Reading is paused for many turns.

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await is_open.wait()
        messages = b"".join(
            b"MSG a %d 400\r\n%b\r\n" % (sid, bytes(400)) for sid in range(1, 5_001)
        )
        while max(sizes) < READ_BYTES_OF_MANY_MAX:
            writer.write(messages)
            await writer.drain()

    class Noting(NatsLink):
        def buffer_updated(self, nbytes: int) -> None:
            sizes.append(nbytes)
            super().buffer_updated(nbytes)

    events = replace(Owner().events(), delivered=delivered)
    async with peer(flood, served) as url:
        options = LinkOptions(
            connect_timeout_s=60.0,
            tls=trusting,
            tls_handshake_first=True,
            seconds=lambda: clock.seconds,
        )
        link = Noting(events, parse_url(url), options)
        await link.open()
        is_open.set()
        await eventually(lambda: max(sizes) > READ_BYTES_OF_MANY_MAX // 2)
        link.abort("done")
        await link.lost
