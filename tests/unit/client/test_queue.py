"""A work queue's reader that is closed, cancelled or interrupted: what it was not handed goes to
others, and nothing of it goes on. And what becomes of its dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NoStreamError,
    StreamPausedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client._loop_thread import LoopThread
from jetstream_client.processing.blocking_queue import Queue
from jetstream_client.processing.queue import AsyncQueue
from jetstream_protocol.generated import consumers_pb2 as pb
from tests.support.loops import eventually, on_loop
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.test_handing_out import interrupted

_Kind = pb.AcknowledgeMessagesRequest.Kind
ABOUT = SimpleNamespace(
    stream_id=7, stream="jobs@jobs", created_us=1, ack_wait=30.0, backoff=(), max_deliver=0,
    dead_letter=None,
)  # fmt: skip


class Server:
    """Delivers messages without end, as many as are asked for. creates, answers: once they are
    set; extensions are answered before. given_back: the offsets. acked, ended: those that were
    acknowledged, and terminated. extended: again and again.
    named: of each acknowledgement, the delivery that it names. others: the offsets that others
    have. waits: what each pull asks for. ends_waits: whether a pull ends without messages."""

    def __init__(self) -> None:
        self.creates, self.answers = asyncio.Event(), asyncio.Event()
        self.creates.set()
        self.answers.set()
        self.next_offset = 0
        self.most = 1 << 30
        self.deliveries = 1
        self.given_back: list[int] = []
        self.acked: list[int] = []
        self.ended: list[int] = []
        self.extended: list[int] = []
        self.named: dict[int, int] = {}
        self.others: set[int] = set()
        self.waits: list[int] = []
        self.ends_waits = False
        self.failure: JetstreamError | None = None
        self.is_asked = False
        self.about = ABOUT

    async def create(self) -> Any:
        self.is_asked = True
        await self.creates.wait()
        return self.about

    async def pull(self, request: pb.PullMessagesRequest) -> pb.PullMessagesResponse:
        first = self.next_offset
        last = min(first + request.messages_max, self.most)
        self.waits.append(request.wait_ms)
        if self.failure is not None:
            raise self.failure
        if first == last and self.ends_waits:
            await asyncio.sleep(request.wait_ms / 1000)
        elif first == last:
            await asyncio.Event().wait()
        self.next_offset = last
        offsets = range(first, last)
        found = [
            pb.DeliveredMessage(offset=at, value=b"%d" % at, deliveries=self.deliveries)
            for at in offsets
        ]
        return pb.PullMessagesResponse(messages=found, created_us=1)

    async def acknowledge(
        self, request: pb.AcknowledgeMessagesRequest
    ) -> pb.AcknowledgeMessagesResponse:
        if any(each.kind != _Kind.IN_PROGRESS for each in request.acknowledgements):
            await self.answers.wait()
        for each in request.acknowledgements:
            self.named[each.offset] = each.delivery
            kinds = {
                _Kind.NAK: self.given_back, _Kind.ACK: self.acked, _Kind.TERM: self.ended,
                _Kind.IN_PROGRESS: self.extended,
            }  # fmt: skip
            of = kinds[each.kind]
            of.append(each.offset)
        late = [
            place
            for place, each in enumerate(request.acknowledgements)
            if each.kind in (_Kind.NAK, _Kind.IN_PROGRESS) and each.offset in self.others
        ]
        return pb.AcknowledgeMessagesResponse(late=late)


async def publishes(*_: Any, **__: Any) -> None: ...


def queue_of(server: Server, publish: Any = publishes, max_wait: float | None = None) -> AsyncQueue:
    consumers: Any = server
    return AsyncQueue(consumers, server.create, publish, "mailers", 32, max_wait, 10.0)


@on_virtual_loop
async def test_a_limit_counts_from_when_the_program_waits() -> None:
    server, now = Server(), asyncio.get_running_loop().time
    server.most, server.ends_waits = 1, True
    async with queue_of(server, max_wait=12.0) as queue:
        await anext(queue)
        await asyncio.sleep(100)  # The program works, and so long it asks for nothing in vain.
        assert len(server.waits) <= 2
        server.most = 2
        await anext(queue)
        asked_at = now()
        assert [each async for each in queue] == []
        assert 12 <= now() - asked_at < 13
        assert server.waits[-1] == 0  # Only that says that there is nothing.


@on_virtual_loop
async def test_a_limit_ends_with_an_error_while_no_server_answers() -> None:
    server, now = Server(), asyncio.get_running_loop().time
    server.failure = UnavailableError("no server answers")
    async with queue_of(server, max_wait=0) as queue:
        begun = now()
        with pytest.raises(UnavailableError, match="no server answers"):
            await anext(queue)
        assert now() - begun >= 10


@on_loop
async def test_one_that_is_closed_while_it_begins_pulls_nothing() -> None:
    before, server = asyncio.all_tasks(), Server()
    server.creates.clear()
    queue = queue_of(server)
    asking = asyncio.ensure_future(anext(queue))
    await eventually(lambda: server.is_asked)
    await queue.aclose()
    server.creates.set()
    with pytest.raises(InvalidRequestError, match="closed"):
        await asking
    await eventually(lambda: asyncio.all_tasks() == before)
    assert server.next_offset == 0


@on_loop
async def test_a_message_names_its_stream_as_those_of_other_readers_do() -> None:
    async with queue_of(Server()) as queue:
        assert (await anext(queue)).stream == "jobs"


@on_loop
async def test_a_loop_over_one_that_is_closed_meanwhile_ends() -> None:
    """Also where it was at work, and does not wait for a message."""
    queue = queue_of(Server())
    found = []
    async for message in queue:
        found.append(message.offset)
        await queue.aclose()
    assert found == [0]


@pytest.mark.parametrize("again", [False, True])
@on_loop
async def test_one_whose_closing_is_cancelled_goes_on_with_nothing(again: bool) -> None:
    before, server = asyncio.all_tasks(), Server()
    queue = queue_of(server)
    message = await anext(queue)
    server.answers.clear()
    closing = asyncio.ensure_future(queue.aclose())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    if again:
        await queue.aclose()
    await eventually(lambda: asyncio.all_tasks() == before)
    with pytest.raises(InvalidRequestError):
        await message.ack()


@on_loop
async def test_all_that_it_was_not_handed_is_given_back() -> None:
    """Also what comes while it gives back."""
    server = Server()
    queue = queue_of(server)
    await anext(queue)
    await eventually(lambda: server.next_offset >= 32)
    server.answers.clear()
    closing = asyncio.ensure_future(queue.aclose())
    await asyncio.sleep(0.05)
    server.answers.set()
    await closing
    assert sorted(server.given_back) == list(range(1, server.next_offset))


def interrupted_as_it_comes(thread: LoopThread) -> Callable[..., Any]:
    """`run`, of which one call has its result and is interrupted then."""
    run, is_over = thread.run, [False]

    def first_interrupted(coroutine: Any) -> Any:
        found = run(coroutine)
        if not is_over[0]:
            is_over[0] = True
            raise KeyboardInterrupt
        return found

    return first_interrupted


def test_an_interrupt_just_as_a_message_has_come_leaves_it_for_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = LoopThread()

    async def made() -> AsyncQueue:
        server = Server()
        server.most = 100
        return queue_of(server)

    queue = thread.run(made())
    reader = Queue(thread, queue)
    with monkeypatch.context() as patch:
        patch.setattr(thread, "run", interrupted_as_it_comes(thread))
        with pytest.raises(KeyboardInterrupt):
            next(reader)
    offsets = []
    for message in reader:
        offsets.append(message.offset)
        if message.offset == 99:
            break
    assert offsets == list(range(100))
    reader.close()
    thread.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("first", [1, 30, 60])
def test_an_interrupt_anywhere_in_a_call_loses_no_message(first: int) -> None:
    thread = LoopThread()

    async def made() -> AsyncQueue:
        server = Server()
        server.most = 100
        return queue_of(server)

    reader = Queue(thread, thread.run(made()))
    found: list[int] = []

    for number in range(first, first + 30):
        found += interrupted(partial(next, reader), number)
    while len(found) < 100:
        found.append(next(reader).offset)
    assert found == list(range(100))
    reader.close()
    thread.close()


def of_dead_letters(publish: Any, size: int = 1 << 30) -> tuple[Server, AsyncQueue, list[int]]:
    """Each message was delivered too often. Also the sizes of what is published, which is refused
    if it is larger than `size`."""
    server, sizes = Server(), list[int]()
    server.about = SimpleNamespace(**{**vars(ABOUT), "max_deliver": 1, "dead_letter": "dead"})
    server.deliveries, server.most = 2, 1

    async def limited(subject: str, value: bytes, **more: Any) -> None:
        sizes.append(len(str(more["headers"])))
        if sizes[-1] > size:
            raise MessageTooLargeError("too large")
        await publish()

    return server, queue_of(server, limited), sizes


@on_loop
async def test_a_dead_letter_that_is_too_large_is_published_without_the_error_s_text() -> None:
    server, queue, sizes = of_dead_letters(publishes, 340)
    asking = asyncio.ensure_future(anext(queue))
    await eventually(lambda: server.ended == [0])
    assert len(sizes) == 2
    assert sizes[0] > 340 >= sizes[1]
    await queue.aclose()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("refusal", [None, NoStreamError("no stream"), StreamPausedError("paused")])
@on_loop
async def test_a_dead_letter_that_never_can_be_published_ends_the_reader_and_not_the_message(
    refusal: JetstreamError | None,
) -> None:
    """It was tried again every five seconds for ever, and only a log line told of it."""

    async def publish() -> None:
        if refusal is not None:
            raise refusal

    server, queue, _ = of_dead_letters(publish, 0 if refusal is None else 1 << 30)
    expected = MessageTooLargeError if refusal is None else type(refusal)
    for _ in range(2):
        with pytest.raises(expected) as raised:
            await asyncio.wait_for(anext(queue), 60)
    assert "record 0 of stream 'jobs@jobs' as a dead letter on 'dead'" in raised.value.__notes__[0]
    await eventually(lambda: server.given_back == [0])
    assert server.ended == []
    await queue.aclose()


@on_loop
async def test_a_dead_letter_that_cannot_be_published_now_comes_again() -> None:
    async def publish() -> None:
        raise UnavailableError("NATS is away")

    server, queue, _ = of_dead_letters(publish)
    asking = asyncio.ensure_future(anext(queue))
    await eventually(lambda: server.given_back == [0])
    assert not asking.done()
    await queue.aclose()
    with pytest.raises(StopAsyncIteration):
        await asking


@on_loop
async def test_what_waits_is_extended_while_an_acknowledgement_is_being_kept() -> None:
    """It would be delivered to others: acknowledgements are answered once they are committed."""
    server = Server()
    server.about = SimpleNamespace(**{**vars(ABOUT), "ack_wait": 0.06})
    queue = queue_of(server)
    message = await anext(queue)
    server.answers.clear()
    acking = asyncio.ensure_future(message.ack())
    await eventually(lambda: len(server.extended) > 2)
    assert not acking.done()
    server.answers.set()
    assert await acking
    await queue.aclose()


@on_loop
async def test_each_acknowledgement_names_the_delivery_and_is_answered_by_itself() -> None:
    """A refusal that was repeated took the message from whoever had got it meanwhile."""
    server = Server()
    server.deliveries, server.others = 3, {1}
    queue = queue_of(server)
    one, two = await anext(queue), await anext(queue)
    saying = [two.nak(), one.nak(), two.extend(), two.ack(), one.extend()]
    assert await asyncio.gather(*saying) == [False, True, False, True, True]
    assert server.named == {0: 3, 1: 3}
    await queue.aclose()
    assert set(server.named.values()) == {3}


@on_loop
async def test_what_was_delivered_to_others_meanwhile_is_not_handed_out() -> None:
    server = Server()
    server.about = SimpleNamespace(**{**vars(ABOUT), "ack_wait": 0.06})
    queue = queue_of(server)
    await anext(queue)
    await eventually(lambda: server.next_offset >= 32)
    server.others = set(range(1, 32))  # All that waits.
    before = len(server.extended)
    await eventually(lambda: len(server.extended) >= before + 62)
    assert (await anext(queue)).offset == 32
    await queue.aclose()


@on_virtual_loop
async def test_an_ack_that_closing_cuts_off_may_have_been_carried_out() -> None:
    """Those that wait behind it were not sent."""
    server = Server()
    queue = queue_of(server)
    first, second = await anext(queue), await anext(queue)
    server.answers.clear()
    acks = [asyncio.ensure_future(first.ack())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    acks.append(asyncio.ensure_future(second.ack()))
    await asyncio.sleep(0)
    await queue.aclose()
    sent, waiting = await asyncio.gather(*acks, return_exceptions=True)
    assert isinstance(sent, UnknownOutcomeError)
    assert type(waiting) is UnavailableError
