"""A node that does not lead a stream any more does not say that there is no such consumer: readers
would end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import NotLeaderError, UnavailableError
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import StreamId
from jetstream_server.clocks import Clocks
from jetstream_server.consumers import leaderships
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.feed import Reader
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import Consumers
from jetstream_server.metadata.state.changes import StreamChanged, StreamDeleted
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.consumers.test_keeper import Log
from tests.unit.consumers.test_manager import Served, kept, noted


class Node:
    """Leads stream 7, in epoch 5."""

    def __init__(self) -> None:
        self.log = Log()
        self.stream: Any = SimpleNamespace(id=StreamId(7), leader_epoch=5, is_internal=False)
        self.replica: Any = SimpleNamespace(stream=self.stream, leadership=object())
        self.has_lease = True
        clocks: Any = SimpleNamespace(wall=lambda: 100)
        self.consumers = Consumers(
            cast(ReplicaManager, self),
            cast(Reader, None),
            cast(Outlet, None),
            cast(Clocks, clocks),
            self.log,
            noted,
        )
        self.leaderships = Leaderships(self.consumers, cast(ReplicaManager, self))

    def get(self, stream_id: StreamId) -> Replica:
        return cast(Replica, self.replica)

    def led_replica_of(self, stream: object) -> Replica:
        if self.replica.leadership is None or not self.has_lease:
            raise NotLeaderError("another node leads it")
        return cast(Replica, self.replica)

    def hears(self, *, epoch: int, leads: bool) -> None:
        self.stream.leader_epoch = epoch
        self.replica.leadership = object() if leads else None
        change: Any = StreamChanged(self.stream, self.stream)
        self.leaderships.apply(change)


@pytest.mark.parametrize("what", ["leadership", "lease"])
@on_virtual_loop
async def test_who_has_lost_it_while_the_consumers_were_loaded_says_so(what: str) -> None:
    node = Node()
    loads, load = asyncio.Event(), node.log.load

    async def slow(stream_ids: Any) -> Any:
        await loads.wait()
        return await load(stream_ids)

    node.log.load = slow  # type: ignore[method-assign]
    asking = asyncio.ensure_future(node.leaderships.loaded(node.replica))
    await asyncio.sleep(0)
    if what == "leadership":
        node.hears(epoch=6, leads=False)
    else:
        node.has_lease = False
    loads.set()
    with pytest.raises(NotLeaderError):
        await asking
    await node.leaderships.close()


@on_virtual_loop
async def test_a_list_of_all_consumers_waits_for_those_that_a_new_leader_still_loads() -> None:
    """Who scales readers by the list would stop them."""
    node = Node()
    loads = asyncio.Event()

    async def slow(stream_ids: Any) -> Any:
        await loads.wait()
        return []

    node.log.load = slow  # type: ignore[method-assign]
    node.hears(epoch=6, leads=True)
    absent: Any = None
    service = ConsumersService(
        absent, absent, node.consumers, node.leaderships, absent, absent, absent
    )
    listing = asyncio.ensure_future(service.ListConsumers(pb.ListConsumersRequest(), absent))
    await asyncio.sleep(1)
    assert not listing.done()
    loads.set()
    assert list((await listing).consumers) == []
    await node.leaderships.close()


@on_virtual_loop
async def test_it_waits_for_those_of_a_stream_that_comes_meanwhile_too() -> None:
    node = Node()
    loads = [asyncio.Event(), asyncio.Event()]
    begun = list[asyncio.Event]()

    async def slow(stream_ids: Any) -> Any:
        begun.append(loads[len(begun)])
        await begun[-1].wait()
        return []

    node.log.load = slow  # type: ignore[method-assign]
    node.hears(epoch=6, leads=True)
    waiting = asyncio.ensure_future(node.leaderships.all_loaded())
    await eventually(lambda: len(begun) == 1)
    node.hears(epoch=7, leads=True)
    loads[0].set()
    await eventually(lambda: len(begun) == 2)
    await asyncio.sleep(1)
    assert not waiting.done()
    loads[1].set()
    await waiting
    await node.leaderships.close()


@pytest.mark.parametrize("leads", [True, False])
@on_virtual_loop
async def test_who_has_lost_it_while_the_consumers_were_loaded_takes_over_nothing(
    leads: bool,
) -> None:
    """It would hear the pulls of the next leader's consumers, and refuse them."""
    node = Node()
    taken = list[Replica]()
    node.leaderships.took_over = taken.append
    loads = asyncio.Event()

    async def slow(stream_ids: Any) -> Any:
        await loads.wait()
        return []

    node.log.load = slow  # type: ignore[method-assign]
    node.leaderships.apply(cast(Any, StreamChanged(node.stream, node.stream)))
    if not leads:
        node.hears(epoch=6, leads=False)
    loads.set()
    await eventually(lambda: not node.leaderships._tasks)
    assert len(taken) == leads
    await node.leaderships.close()


@on_virtual_loop
async def test_who_leads_it_again_meanwhile_waits_for_the_later_load() -> None:
    node = Node()
    loads, load, epochs = asyncio.Event(), node.log.load, list[int]()

    async def slow(stream_ids: Any) -> Any:
        epochs.append(node.stream.leader_epoch)
        if len(epochs) == 1:
            await loads.wait()
        return await load(stream_ids)

    node.log.load = slow  # type: ignore[method-assign]
    asking = asyncio.ensure_future(node.leaderships.loaded(node.replica))
    await eventually(lambda: bool(epochs))
    node.hears(epoch=7, leads=True)
    loads.set()
    await asking
    assert epochs == [5, 7]
    await node.leaderships.close()


@on_virtual_loop
async def test_consumers_that_a_later_leader_has_claimed_may_be_there() -> None:
    node = Node()
    node.log.value, node.log.revision = kept(6, 100), 4
    with pytest.raises(UnavailableError, match="another node leads"):
        await node.leaderships.loaded(node.replica)
    node.log.value = b""
    node.hears(epoch=7, leads=True)
    node.log.load = lambda stream_ids: asyncio.sleep(0, [])  # type: ignore[method-assign]
    await node.leaderships.loaded(node.replica)
    await node.leaderships.close()


@pytest.mark.parametrize("is_replaced", [True, False])
@on_virtual_loop
async def test_a_fenced_leader_says_that_another_one_leads(is_replaced: bool) -> None:
    """Unless the consumer was deleted."""
    node = Node()
    node.log.load = lambda stream_ids: asyncio.sleep(0, [])  # type: ignore[method-assign]
    await node.leaderships.loaded(node.replica)
    served: Any = Served(3, node.replica)
    served.keeper.is_replaced = is_replaced
    node.consumers._fenced(cast(Consumer, served))
    if is_replaced:
        with pytest.raises(UnavailableError):
            await node.leaderships.loaded(node.replica)
    else:
        await node.leaderships.loaded(node.replica)
    await node.leaderships.close()


@on_virtual_loop
async def test_a_node_that_ends_says_so() -> None:
    node = Node()
    await node.leaderships.close()
    with pytest.raises(UnavailableError):
        await node.leaderships.loaded(node.replica)


@pytest.mark.parametrize("is_all", [False, True], ids=["of one stream", "all"])
@on_virtual_loop
async def test_a_node_that_ends_while_it_loads_says_so(is_all: bool) -> None:
    """The caller's own task is not cancelled; and a list without them would be taken for the
    truth."""
    node = Node()

    async def slow(stream_ids: Any) -> Any:
        await asyncio.sleep(60)

    node.log.load = slow  # type: ignore[method-assign]
    node.hears(epoch=6, leads=True)
    asked = node.leaderships.all_loaded() if is_all else node.leaderships.loaded(node.replica)
    asking = asyncio.ensure_future(asked)
    await asyncio.sleep(1)
    await node.leaderships.close()
    with pytest.raises(UnavailableError, match="this node ends"):
        await asking


@on_virtual_loop
async def test_a_node_that_has_ended_lists_nothing() -> None:
    node = Node()
    await node.leaderships.loaded(node.replica)
    await node.leaderships.close()
    with pytest.raises(UnavailableError, match="this node ends"):
        await node.leaderships.all_loaded()


@pytest.mark.parametrize("what", ["leadership", "lease"])
@on_virtual_loop
async def test_who_has_lost_it_while_a_consumer_was_created_does_not_answer(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader after it may have loaded its consumers before. Nor does it keep the consumer: who
    would take it away?"""
    node = Node()
    added: list[object] = []
    monkeypatch.setattr(node.consumers, "_add", lambda *what: added.append(what) or added)
    write = node.log.write

    async def slow(writes: Any) -> Any:
        answers = await write(writes)
        if what == "leadership":
            node.hears(epoch=6, leads=False)
        else:
            node.has_lease = False
        return answers

    node.log.write = slow  # type: ignore[method-assign]
    config = ConsumerConfig(name="c", is_durable=True)
    with pytest.raises((NotLeaderError, UnavailableError)):
        await node.leaderships.add(node.replica, config, 0)
    assert node.log.value
    assert bool(added) == (what == "lease")  # Of that a change of the metadata tells later.
    await node.leaderships.close()


@on_virtual_loop
async def test_nothing_is_kept_of_a_stream_that_is_deleted() -> None:
    node = Node()
    await node.leaderships.loaded(node.replica)
    deleted: Any = StreamDeleted(node.stream)
    node.leaderships.apply(deleted)
    assert not node.leaderships._loads


@on_virtual_loop
async def test_a_fault_of_ours_leaves_no_stream_without_its_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaderships, "_PAUSE_SECONDS", 0.001)
    node, faults = Node(), [KeyError("a fault")]
    load = node.log.load

    async def faulty(stream_ids: Any) -> Any:
        if faults:
            raise faults.pop()
        return await load(stream_ids)

    node.log.load = faulty  # type: ignore[method-assign]
    await node.leaderships.loaded(node.replica)
    assert not faults
    await node.leaderships.close()


@on_virtual_loop
async def test_what_was_created_for_an_earlier_leadership_is_claimed_for_the_new_one() -> None:
    """Else it would be fenced by its own node's claim, and be served by nobody."""
    node = Node()
    config = ConsumerConfig(name="c", is_durable=True)
    node.log.goes_on.clear()
    creating = asyncio.ensure_future(node.leaderships.add(node.replica, config, 0))
    await asyncio.sleep(0)
    node.stream.leader_epoch = 6
    node.log.goes_on.set()
    with pytest.raises(UnavailableError):
        await creating
    assert node.consumers.find(StreamId(7), "c") is None
    await node.leaderships.close()
