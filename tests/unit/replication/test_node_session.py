"""A session as the server sees it: the lease as of now, and being told when it changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import BootUs, NodeId, StreamId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.extension import RaftThreadExtension
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.sessions.driver import SessionDriver
from jetstream_server.replication.sessions.lease import SessionSettings
from jetstream_server.replication.sessions.node_session import NodeSession
from jetstream_server.replication.sessions.session_messages import Grant, LogEnd, encode
from tests.support.virtual_time import VirtualTimeLoop, loop_clock, on_virtual_loop

from .session_fabric import FakeCarrier

SHORT = SessionSettings(
    timeout_us=150_000, heartbeat_us=30_000, lease_us=100_000, authority_us=50_000
)


class Server:
    """A metadata log that is only carried on; the test grants."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.is_alone = is_alone
        self.incarnation: int | None = 7
        self.seen_revision = 0
        self.leader = NodeId(1)
        self.extension: RaftThreadExtension | None = None
        self.context = FakeCarrier(0, (0, 1, 2))
        self.context.term, self.context.leader = 1, NodeId(1)

    def attach(self, extension: RaftThreadExtension) -> None:
        self.extension = extension

    def session(self) -> NodeSession:
        return NodeSession(cast(RaftMetadataLog, self), SHORT, lambda: BootUs(loop_clock()))

    def grant(self) -> None:
        driver = cast(SessionDriver, self.extension)
        driver.turn(self.context)
        driver.received(self.context, NodeId(1), encode(Grant(7, driver._sent_at_us, 0)))


@on_virtual_loop
async def test_it_is_told_once_of_each_change_and_as_of_now_in_between() -> None:
    server = Server()
    session = server.session()
    told: list[str] = []
    session.start(changed=lambda: told.append("held" if session.lease_holds() else "lost"))
    assert (session.lease_holds(), told) == (False, [])
    server.grant()
    assert session.lease_holds()
    await session.wait_until_held(1)
    for _ in range(6):
        await asyncio.sleep(0.03)
        server.grant()
    assert told == ["held"]
    await asyncio.sleep(0.15)
    assert not session.lease_holds()
    assert told == ["held", "lost"]
    server.grant()
    await session.wait_until_held(1)
    assert told == ["held", "lost", "held"]
    await session.close()


@on_virtual_loop
async def test_a_lease_that_lapsed_while_the_loop_was_busy_does_not_hold_before_it_is_told() -> (
    None
):
    server = Server()
    session = server.session()
    session.start()
    server.grant()
    await session.wait_until_held(1)
    loop = asyncio.get_running_loop()
    cast(VirtualTimeLoop, loop).stand_still((SHORT.lease_us + 10_000) / 1e6)
    assert not session.lease_holds()
    await session.close()


@on_virtual_loop
async def test_waiting_for_a_lease_ends_in_time() -> None:
    session = Server().session()
    session.start()
    with pytest.raises(UnavailableError, match="has not granted"):
        await session.wait_until_held(0.05)
    await session.close()


@on_virtual_loop
async def test_a_group_of_one_holds_its_lease_from_the_start() -> None:
    server = Server(is_alone=True)
    session = server.session()
    told = SimpleNamespace(held=0)

    def held() -> None:
        told.held += 1

    assert session.lease_holds()
    session.start(changed=held)
    assert told.held == 1
    await session.wait_until_held(0)
    await session.close()


@on_virtual_loop
async def test_log_ends_are_looked_for_when_the_metadata_changed() -> None:
    server = Server()
    session = server.session()
    driver = cast(SessionDriver, server.extension)
    ends: list[tuple[LogEnd, ...]] = [()]
    looks = SimpleNamespace(count=0)

    def look() -> tuple[LogEnd, ...]:
        looks.count += 1
        return ends[0]

    session.start(look)
    await asyncio.sleep(0.7)
    assert looks.count == 1
    ends[0] = (LogEnd(StreamId(1), 0, ReplicaReport(7, 0, 10, False)),)
    server.seen_revision = 1
    await asyncio.sleep(0.6)
    assert driver.log_ends == ends[0]
    await session.close()


@on_virtual_loop
async def test_after_its_close_nobody_is_told_anything() -> None:
    server = Server()
    session = server.session()
    told: list[str] = []
    session.start(changed=lambda: told.append("held"))
    await session.close()
    server.grant()
    await asyncio.sleep(0.05)
    assert told == []
