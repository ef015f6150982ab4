"""A leader whose leaf link was lost: whom it tells that their pulls are over, and when."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import MonotonicUs, NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.consumers.pulls import Pull
from jetstream_server.jetstream_api.lost_pulls import HEARD, LostPulls, ended_pulls, lost_since
from tests.support.virtual_time import on_virtual_loop

JOBS = StreamId(7)
SECOND = 1_000_000


class Leader:
    """Its link and its peers: node 1 is down, node 2 has heard `meanwhile`."""

    def __init__(self) -> None:
        self.meanwhile: list[Pull] = []
        self.odd_answer = b""
        self.told: list[bytes] = []
        self.heard: set[bytes] = set()
        self.is_connected = True
        self.waiting: list[Pull] = []
        self.asked: list[tuple[int, MonotonicUs]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        registry: Any = SimpleNamespace(
            streams={JOBS: SimpleNamespace(isr=(NodeId(0), NodeId(1), NodeId(2)))}
        )
        me: Any = self
        consumer: Any = SimpleNamespace(cut_off=self.cut_off)
        self.lost = LostPulls(NodeId(0), [consumer], registry, me, me, run_in_background)  # type: ignore[arg-type]
        self.lost.begin(me)

    def monotonic(self) -> MonotonicUs:
        return MonotonicUs(round(asyncio.get_running_loop().time() * SECOND))

    def cut_off(self) -> list[Pull]:
        pulls, self.waiting = self.waiting, []
        return pulls

    # The link.

    async def settled(self) -> None: ...

    def is_heard(self, inbox: bytes) -> bool:
        return inbox in self.heard

    def send(self, inbox: bytes, *_: bytes) -> None:
        self.told.append(inbox)

    # Peers.

    async def ask_consumers(self, node: int, stream: int, verb: str, _: str, body: bytes) -> bytes:
        assert (stream, verb) == (JOBS, HEARD)
        await self.answers.wait()
        self.asked.append((node, lost_since(body, self.monotonic())))
        if node == 1:
            raise UnavailableError("it is down")
        return self.odd_answer or json.dumps(ended_pulls(self.meanwhile)).encode()

    def listens(self, *inboxes: bytes) -> None:
        self.heard |= {*inboxes}
        self.lost.interest_changed()


def pull(inbox: bytes) -> Pull:
    found = Pull(inbox, 1)
    found.is_heard = True
    return found


@on_virtual_loop
async def test_who_waited_and_who_asked_meanwhile_are_told_once() -> None:
    leader = Leader()
    leader.heard = {b"waited", b"meanwhile"}
    leader.waiting = [pull(b"waited")]
    lost_us = leader.monotonic()
    leader.lost.lost()
    leader.is_connected = False
    await asyncio.sleep(5)
    leader.meanwhile = [pull(b"waited"), pull(b"meanwhile"), pull(b"gone")]
    leader.is_connected = True
    leader.lost.back([JOBS])
    await asyncio.sleep(1)
    assert sorted(leader.told) == [b"meanwhile", b"waited"]
    assert sorted(leader.asked) == [(1, lost_us), (2, lost_us)]


@on_virtual_loop
async def test_who_asks_again_by_itself_is_told_nothing_whoever_else_has_heard_it() -> None:
    leader = Leader()
    leader.heard = {b"a", b"b"}
    leader.waiting = [pull(b"a"), pull(b"b")]
    leader.lost.lost()
    leader.answers.clear()
    leader.meanwhile = [pull(b"a")]
    leader.lost.back([JOBS])
    leader.lost.asked_again(b"a")
    leader.answers.set()
    await asyncio.sleep(1)
    assert leader.told == [b"b"]


@on_virtual_loop
async def test_who_comes_back_later_is_told_then() -> None:
    leader = Leader()
    leader.waiting = [pull(b"late"), pull(b"gone")]
    leader.lost.lost()
    leader.lost.back([])
    await asyncio.sleep(30)
    assert leader.told == []
    leader.listens(b"late")
    await asyncio.sleep(1)
    assert leader.told == [b"late"]


@pytest.mark.parametrize("answer", [b"[]", b'{"pulls": 1}', b'{"pulls": [[1, 1, 0]]}', b"{"])
@on_virtual_loop
async def test_who_waited_is_told_whatever_a_node_of_another_version_answers(
    answer: bytes,
) -> None:
    leader = Leader()
    leader.odd_answer = answer
    leader.heard = {b"waited"}
    leader.waiting = [pull(b"waited")]
    leader.lost.lost()
    leader.lost.back([JOBS])
    await asyncio.sleep(10)
    assert leader.told == [b"waited"]
