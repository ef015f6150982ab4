"""The metadata log as a Raft group, over real sockets, threads and files."""

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.errors import (
    FencedEpochError,
    InternalError,
    NotLeaderError,
    PreconditionFailedError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member import member
from jetstream_server.metadata.member.member_loop import MemberLoop
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import REGULAR
from jetstream_server.metadata.raft.timings import RaftTimings
from jetstream_server.metadata.state.changes import Change, StreamCreated
from jetstream_server.metadata.state.commands import Barrier, DrainNode, FenceNode, SetCluster
from jetstream_server.metadata.state.results import SPAN

from .metadata_group import (
    CALM,
    HOURS,
    agreed,
    create,
    members,
    persist,
    propose_under,
    register,
    running,
    until,
)


def counted_turns(monkeypatch: pytest.MonkeyPatch) -> Counter[NodeId]:
    """How often each member has turned from now on."""
    turns: Counter[NodeId] = Counter()
    turn = MemberLoop.turn

    def count(member_loop: MemberLoop) -> None:
        turns[member_loop.status.node_id] += 1
        turn(member_loop)

    monkeypatch.setattr(MemberLoop, "turn", count)
    return turns


class TestGroupOfOne:
    def test_it_starts_and_serves_at_once_and_opens_no_port(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with members(tmp_path, 1) as group, asyncio.timeout(60):
                group.use(CALM)  # Who waited for an election would wait for an hour.
                log: RaftMetadataLog = await group.start(0, listen="256.0.0.1:1")
                await log.propose(register(log), patience=HOURS)
                assert log.leader == 0

        asyncio.run(main())

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_bug_at_the_start_ends_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(directory: str) -> None:
            raise ZeroDivisionError(directory)

        async def main() -> None:
            async with members(tmp_path, 1) as group:
                monkeypatch.setattr(member, "read_snapshot", fail)
                with pytest.raises(InternalError, match="the metadata thread has ended: ZeroDiv"):
                    await asyncio.wait_for(group.start(0), 60)

        asyncio.run(main())

    def test_ten_thousand_streams_are_created_many_at_a_time_and_are_there_after_a_restart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        syncs, sync = 0, Journal.sync

        def counted(journal: Journal) -> None:
            nonlocal syncs
            syncs += 1
            sync(journal)

        async def main() -> None:
            async with members(tmp_path, 1) as group:
                log = await group.start(0)
                await log.propose(register(log))
                monkeypatch.setattr(Journal, "sync", counted)
                names = [f"s{number}" for number in range(10_000)]
                await asyncio.gather(*(log.propose(create(name, 0), patience=60) for name in names))
                assert 0 < syncs < 1000
                await group.stop(log)
                again = await group.start(0)
                assert len(again.registry.streams) == 10_000
                assert again.registry.feeding("s77.x")[0].name == "s77"

        asyncio.run(main())


class TestThreeMembers:
    def test_any_of_them_takes_proposals_and_all_hold_the_same(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as (_, logs):
                for number, log in enumerate(logs):
                    result = await log.propose(create(f"s{number}", 0, 1, 2))
                    # Applied on the proposing node too, once the proposal has returned.
                    assert log.registry.streams[result["stream_id"]].name == f"s{number}"
                for log in logs:
                    await log.barrier()
                assert logs[0].registry.streams == logs[1].registry.streams
                assert logs[0].registry.streams == logs[2].registry.streams
                assert logs[0].registry.nodes == logs[1].registry.nodes

        asyncio.run(main())

    def test_watchers_on_every_node_see_the_same_changes_in_order(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as (_, logs):
                seen: list[list[Change]] = [[] for _ in logs]
                for log, changes in zip(logs, seen, strict=True):
                    log.watch(changes.append)
                await asyncio.gather(
                    *(logs[n % 3].propose(create(f"s{n}", 0), patience=60) for n in range(300))
                )
                for log in logs:
                    await log.barrier()
                created = [
                    [change.stream.id for change in changes if isinstance(change, StreamCreated)]
                    for changes in seen
                ]
                assert len(created[0]) == 300
                assert created[0] == created[1] == created[2] == sorted(created[0])

        asyncio.run(main())

    def test_a_leader_that_stops_hands_over_without_an_election_timeout(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                leader = await agreed(logs)
                others = [log for log in logs if log is not logs[leader]]
                await others[0].barrier()
                group.use(replace(CALM, gone_min=HOURS, gone_max=2 * HOURS))
                await group.stop(logs[leader])
                await persist(others[0], Barrier())
                assert others[0].leader not in (NO_NODE, leader)

        asyncio.run(main())

    def test_without_a_majority_a_proposal_is_refused_at_once_and_says_why(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                group.use(RaftTimings())
                for log in logs[1:]:
                    await group.stop(log)
                # The last one stopped may have handed its leadership over, to a leader of nobody.
                await asyncio.sleep(2 * RaftTimings().leader_fallback)
                await until(lambda: logs[0].leader == NO_NODE)
                async with asyncio.timeout(60):
                    with pytest.raises(UnavailableError, match="no metadata leader"):
                        await logs[0].propose(create("s", 0), patience=HOURS)
                    with pytest.raises(UnavailableError):
                        await logs[0].barrier()

        asyncio.run(main())

    def test_a_restarted_member_catches_up_from_the_log_or_from_a_snapshot(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running(tmp_path, compact_after_entries=40) as (group, logs):
                leader = await agreed(logs)
                late = next(log for log in logs if log is not logs[leader])
                node_id = late.status().node_id
                await group.stop(late)
                for number in range(100):
                    await logs[leader].propose(create(f"s{number}", leader))
                again = await group.start(node_id, compact_after_entries=40)
                await again.wait_for_leader(60)
                await persist(again, Barrier())
                assert again.registry.streams == logs[leader].registry.streams
                status = again.status()
                assert status.journal_entries < 100

        asyncio.run(main())

    def test_members_go_on_while_the_server_s_loop_is_busy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (_, logs):
                turns = counted_turns(monkeypatch)
                end = time.monotonic() + 60.0
                while min(turns[log.status().node_id] for log in logs) < 10:
                    assert time.monotonic() < end, "they wait for the server's loop"
                    sum(range(1000))  # Holds the interpreter, unlike a sleep.

        asyncio.run(main())

    def test_members_at_rest_turn_for_heartbeats_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (_, logs):
                begun, turns = time.monotonic(), counted_turns(monkeypatch)
                await asyncio.sleep(1)
                seconds = time.monotonic() - begun  # More, where the machine stood still.
                # Ten heartbeats a second, each answered by two.
                for log in logs:
                    is_leader = log.leader == log.status().node_id
                    assert turns[log.status().node_id] < (36 if is_leader else 18) * seconds

        asyncio.run(main())

    def test_who_waits_for_something_turns_each_tick(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                leader = await agreed(logs)
                for log in logs:
                    if log.status().node_id == leader:
                        await group.stop(log)
                        break
                group.use(RaftTimings())
                await group.stop(next(log for log in logs if log in group.running))
                (left,) = group.running
                await until(lambda: left.leader == NO_NODE)
                member_loop = left._member._member_loop
                assert member_loop is not None
                tick = RaftTimings().tick
                assert member_loop.next_turn_at <= member_loop._turned_at + tick

        asyncio.run(main())

    def test_a_node_that_is_no_voter_follows_and_forwards(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                observer = await group.start(7)
                await observer.wait_for_leader(60)
                await persist(observer, register(observer))
                result = await observer.propose(create("from-afar", 7))
                assert observer.registry.streams[result["stream_id"]].leader == 7
                leader = await agreed(logs)
                await group.stop(logs[leader])
                rest = [log for log in logs if log is not logs[leader]]
                await persist(observer, create("after-failover", 7))
                assert await agreed([*rest, observer]) != 7

        asyncio.run(main())


class TestProposals:
    def test_a_process_must_register_before_anything_else(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with members(tmp_path, 1) as group:
                log = await group.start(0)
                await log.propose(SetCluster(cluster_id="c"))
                with pytest.raises(PreconditionFailedError, match="register"):
                    await log.propose(create("s", 0))

        asyncio.run(main())

    def test_a_proposal_given_up_by_its_caller_holds_up_nobody(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as (_, logs):
                tasks = [
                    asyncio.create_task(logs[0].propose(create(f"s{n}", 0))) for n in range(900)
                ]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await persist(logs[0], create("after", 0))

        asyncio.run(main())

    def test_nothing_can_be_proposed_before_the_start_or_after_the_end(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with members(tmp_path, 1) as group:
                log = await group.start(0)
                await group.stop(log)
                with pytest.raises(UnavailableError, match="stopping"):
                    await log.propose(register(log))

        asyncio.run(main())


class TestController:
    def test_only_the_metadata_leader_decides_and_only_under_its_own_claim(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                leader = await agreed(logs)
                first = logs[leader]
                await until(lambda: first.controller_epoch is not None)
                assert first.registry.controller.node_id == leader
                assert first.registry.controller.epoch == first.controller_epoch
                await first.propose(DrainNode(node_id=leader), as_controller=True)
                others = [log for log in logs if log is not first]
                with pytest.raises(NotLeaderError):
                    await others[0].propose(Barrier(), as_controller=True)
                stale = first.controller_epoch
                await group.stop(first)
                second = logs[await agreed(others)]
                await until(lambda: second.controller_epoch is not None)
                with pytest.raises(FencedEpochError):
                    await propose_under(second, Barrier(), stale)
                await second.propose(FenceNode(node_id=leader), as_controller=True)
                assert second.registry.nodes[NodeId(leader)].fenced

        asyncio.run(main())


class TestFailStop:
    def test_a_failed_flush_ends_this_nodes_part_and_the_others_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                leader = await agreed(logs)
                broken = logs[leader]
                fdatasync = os.fdatasync
                journal_path = os.path.join(group.config(leader).directory, "journal")

                def failing(descriptor: int) -> None:
                    if os.readlink(f"/proc/self/fd/{descriptor}") == journal_path:
                        raise OSError(5, "Input/output error")
                    fdatasync(descriptor)

                group.use(RaftTimings())  # It is missed by its silence.
                monkeypatch.setattr(os, "fdatasync", failing)
                with pytest.raises(UnknownOutcomeError, match="Input/output error"):
                    await broken.propose(create("s", 0))
                with pytest.raises(UnavailableError, match="Input/output error"):
                    await broken.propose(create("t", 0))
                await until(lambda: bool(group.failures))
                assert "Input/output error" in group.failures[0]
                others = [log for log in logs if log is not broken]
                await persist(others[0], create("u", 0))
                assert broken.leader == NO_NODE

        asyncio.run(main())

    def test_a_leader_that_cannot_read_its_snapshot_ends_its_part_and_another_sends_it(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running(tmp_path, compact_after_entries=40) as (group, logs):
                broken = logs[await agreed(logs)]
                behind, other = (log for log in logs if log is not broken)
                await group.stop(behind)
                for number in range(100):
                    await persist(other, create(f"s{number}", 0))
                while broken.status().journal_entries > 20:
                    await persist(broken, Barrier())
                await persist(broken, Barrier())  # The snapshot is written by now.
                snapshot = Path(group.config(broken.status().node_id).directory, "snapshot")
                snapshot.unlink()
                snapshot.mkdir()
                group.use(RaftTimings())  # It is missed by its silence.
                again = await group.start(behind.status().node_id)
                await until(lambda: bool(group.failures))
                assert group.failures == [f"{snapshot} cannot be read: Is a directory"]
                assert broken.leader == NO_NODE
                await persist(again, Barrier())
                assert again.registry.streams == other.registry.streams

        asyncio.run(main())

    def test_a_bug_in_a_tick_ends_this_nodes_part_and_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with running(tmp_path, 1) as (group, (log,)):

                def fail(core: RaftCore) -> None:
                    raise ZeroDivisionError

                monkeypatch.setattr(RaftCore, "tick", fail)
                await until(lambda: bool(group.failures))
                assert group.failures == ["internal error: ZeroDivisionError()"]
                assert log.leader == NO_NODE

        asyncio.run(main())

    def test_a_bug_in_a_hand_over_leaves_no_port_open_behind_a_stopped_member(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with running(tmp_path) as (group, logs):
                bugs: list[object] = []
                monkeypatch.setattr(threading, "excepthook", lambda bug: bugs.append(bug.exc_type))

                def fail(core: RaftCore) -> bool:
                    raise ZeroDivisionError

                leading = logs[await agreed(logs)]
                node_id = leading.status().node_id
                with monkeypatch.context() as patch:
                    patch.setattr(RaftCore, "hand_over", fail)
                    await group.stop(leading)
                assert bugs == [ZeroDivisionError]
                host, _, port = group.voters[node_id].rpartition(":")
                socket.create_server((host, int(port))).close()

        asyncio.run(main())

    def test_an_entry_of_newer_software_stops_the_node_rather_than_being_skipped(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with members(tmp_path, 1) as group:
                directory = group.config(0).directory
                await group.stop(await group.start(0))
                journal = Journal.open(directory)
                newer = bytes([REGULAR]) + b'{"v":2}\nsomething'
                journal.append(Entry(newer, journal.last_index + 1, journal.term))
                journal.sync()
                journal.close()
                with pytest.raises((UnavailableError, UnknownOutcomeError), match="update this"):
                    await group.start(0)
                assert "update this server" in group.failures[0]

        asyncio.run(main())

    def test_damaged_metadata_stops_the_start(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with members(tmp_path, 3) as group:
                await group.stop(await group.start(0))
                folder = Path(group.config(0).directory)
                journal = folder / "journal"
                (folder / "synced").unlink(missing_ok=True)
                journal.write_bytes(journal.read_bytes() + b"x" * 99)
                log = await group.start(0)  # A torn tail, as far as anyone can tell.
                await group.stop(log)
                journal.write_bytes(b"no journal at all")
                with pytest.raises(StorageError, match="byte 0"):
                    await group.start(0)

        asyncio.run(main())


@pytest.mark.parametrize("joins", [True, False], ids=["asks", "probes"])
def test_a_member_can_be_stopped_while_it_waits_for_others_at_its_start(
    tmp_path: Path, joins: bool
) -> None:
    silent: list[asyncio.StreamWriter] = []

    async def main() -> None:
        dialled = asyncio.Event()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            silent.append(writer)
            dialled.set()

        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = "127.0.0.1:{1}".format(*listening.sockets[0].getsockname())
        async with members(tmp_path, 1) as group:
            own = group.voters[NodeId(0)]
            voters = {} if joins else {NodeId(0): own, NodeId(1): address}
            join = (address,) if joins else ()
            starting = asyncio.create_task(group.start(0, listen=own, voters=voters, join=join))
            await dialled.wait()
            async with asyncio.timeout(60):
                await group.stop(group.running[0])
            with pytest.raises(UnavailableError, match="this server is stopping"):
                await starting
        listening.close()
        for writer in silent:
            writer.close()

    asyncio.run(main())


def test_proposals_that_wait_for_a_number_end_when_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with members(tmp_path, 1) as group:
            log = await group.start(0)
            await persist(log, register(log))
            disk, sync = threading.Event(), Journal.sync

            def wait_and_sync(journal: Journal) -> None:
                disk.wait(60)
                sync(journal)

            monkeypatch.setattr(Journal, "sync", wait_and_sync)
            proposing = [asyncio.create_task(log.barrier()) for _ in range(SPAN + 3)]
            await until(lambda: len(log._outcomes) == SPAN and not log._unsent)
            told, call = threading.Event(), log._member._call

            def note(*arguments: Any) -> None:
                call(*arguments)
                told.set()

            monkeypatch.setattr(log._member, "_call", note)
            stopping = asyncio.create_task(group.stop(log))
            await until(told.is_set)
            disk.set()
            await stopping
            async with asyncio.timeout(60):
                ended = await asyncio.gather(*proposing, return_exceptions=True)
            assert {type(error) for error in ended[:SPAN]} == {UnknownOutcomeError}
            assert {type(error) for error in ended[SPAN:]} == {UnavailableError}

    asyncio.run(main())
