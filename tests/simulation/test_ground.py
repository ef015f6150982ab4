"""The ground that nodes stand on in the simulation: the loop, and connections between nodes."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from tests.simulation.connection import SimulatedConnection
from tests.simulation.disk import Killed
from tests.simulation.loop import Handle, SimulatedLoop, bury
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.world import World


class Owner:
    """A process with a loop and nothing else. `said` is what it did, and when."""

    def __init__(self, world: World, network: Network, node_id: int = 0) -> None:
        self.world = world
        self.node_id = node_id
        self.cluster = SimpleNamespace(network=network)
        self.loop = SimulatedLoop(world, f"node {node_id}", self.die)
        self.connections: dict[SimulatedConnection, None] = {}
        self.said: list[tuple[int, object]] = []
        self.left: list[asyncio.Task[Any]] = []

    def say(self, what: object) -> None:
        self.said.append((self.world.now, what))

    def run(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.enter(lambda: self.loop.create_task(function()))

    def die(self, reason: str = "") -> None:
        self.left = self.loop.end()
        for connection in list(self.connections):
            connection.vanish(silently=False)


def an_owner(seed: int = 1) -> Owner:
    world = World(seed)
    return Owner(world, Network(world))


def connected(seed: int = 1) -> tuple[Owner, SimulatedConnection, Owner, SimulatedConnection]:
    world = World(seed)
    network = Network(world)
    owners = [Owner(world, network, node_id) for node_id in (0, 1)]
    ends = [SimulatedConnection(cast(Process, owner), 1 - owner.node_id) for owner in owners]
    ends[0].join(ends[1], "positions")
    ends[1].join(ends[0], "records")
    return owners[0], ends[0], owners[1], ends[1]


def send(end: SimulatedConnection, number: int) -> None:
    assert end.start(Kind.POSITIONS, number, pb.Positions(dropped=[number])) is None


def receive_each(owner: Owner, end: SimulatedConnection) -> None:
    async def receive() -> None:
        try:
            await end.read_each(
                Kind.POSITIONS, pb.Positions, lambda head, _: owner.say(head.dropped[0])
            )
        except (EOFError, OSError) as error:
            owner.say(type(error))

    owner.run(receive)


def numbers(owner: Owner) -> list[object]:
    return [what for _, what in owner.said]


# The loop.


async def _some_work(owner: Owner) -> None:
    async def count(name: str, pause: float) -> None:
        for number in range(5):
            await asyncio.sleep(pause)
            owner.say((name, number))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(count("a", 0.01))
        tasks.create_task(count("b", 0.007))
    owner.say(await asyncio.get_running_loop().run_in_executor(None, lambda: "done"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.Event().wait()
    owner.say("given up")


def test_a_seed_gives_the_same_turns_twice_and_another_seed_others() -> None:
    def story(seed: int) -> list[tuple[int, object]]:
        owner = an_owner(seed)
        owner.run(lambda: _some_work(owner))
        owner.world.run_until(2_000_000)
        return owner.said

    assert story(3) == story(3)
    assert story(3) != story(4)
    assert [what for _, what in story(3)][-2:] == ["done", "given up"]
    assert 500_000 <= story(3)[-1][0] - story(3)[-2][0] < 501_000


def test_callbacks_of_one_turn_run_in_the_order_in_which_they_were_asked_for() -> None:
    owner = an_owner()
    owner.loop.enter(lambda: [owner.loop.call_soon(owner.say, number) for number in range(9)])
    owner.world.run_until(1_000)
    assert numbers(owner) == list(range(9))


def test_a_cancelled_timer_does_not_fire() -> None:
    owner = an_owner()
    owner.loop.call_later(0.1, owner.say, "late").cancel()
    owner.world.run_until(1_000_000)
    assert owner.said == []


def test_a_frozen_process_goes_on_where_it_was_when_it_wakes() -> None:
    owner = an_owner()
    owner.run(lambda: _some_work(owner))
    owner.world.run_until(20_000)
    before = len(owner.said)
    owner.loop.paused_until = 900_000
    owner.world.run_until(899_999)
    assert len(owner.said) == before
    owner.world.run_until(1_000_000)
    assert numbers(owner).count(("a", 4)) == 1
    assert 900_000 <= min(now for now, _ in owner.said[before:]) < 900_100


def test_what_came_while_a_process_was_frozen_comes_first_when_it_is_woken_early() -> None:
    owner = an_owner()
    world = owner.world
    owner.loop.paused_until = 900_000
    for number in range(3):
        world.at(1_000 + number, owner.loop, owner.loop.enter, owner.say, number)
    world.at(200_000, owner.loop, owner.loop.enter, owner.say, 4)
    world.run_until(100_000)
    owner.loop.wake()
    world.at(world.now, owner.loop, owner.loop.enter, owner.say, 3)
    world.run_until(1_000_000)
    assert numbers(owner) == list(range(5))


def test_a_process_may_fall_asleep_between_two_callbacks_of_one_turn() -> None:
    owner = an_owner()
    owner.loop.sleep_after = 3, 500_000
    owner.loop.enter(lambda: [owner.loop.call_soon(owner.say, number) for number in range(9)])
    owner.world.run_until(1_000_000)
    times = [now for now, _ in owner.said]
    assert numbers(owner) == list(range(9))
    assert max(times[:3]) < 1_000
    assert min(times[3:]) >= 500_000


def test_while_its_thread_is_held_up_other_threads_call_before_what_arrives() -> None:
    """What they call soon comes before what the turn under way calls soon, that before what arrives
    from outside, which is seen when the turn is over."""
    owner = an_owner()
    loop = owner.loop

    def hold_up(callbacks: Sequence[Handle]) -> int:
        loop.hold_up = None
        assert len(callbacks) == 1
        loop.world.later(50, None, loop.enter, owner.say, "arrived")
        loop.call_soon_threadsafe(owner.say, "other thread")
        return 100

    loop.hold_up = hold_up
    loop.enter(loop.call_soon, owner.say, "called soon")
    loop.world.run_until(1_000)
    assert [what for _, what in owner.said] == ["other thread", "called soon", "arrived"]
    assert owner.said[0][0] >= 100


def test_what_dying_tasks_begin_is_closed_with_them() -> None:
    """Otherwise each coroutine that never ran would be said, once it is collected."""
    owner = an_owner()

    async def never_run() -> None:
        raise AssertionError

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            await asyncio.gather(never_run())

    owner.run(work)
    owner.world.run_until(10_000)
    owner.die()
    owner.loop.create_task(never_run())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bury(owner.left)
        gc.collect()
    assert said == []


def test_nothing_of_a_dead_process_runs_not_even_its_finally() -> None:
    owner = an_owner()

    async def work() -> None:
        try:
            await asyncio.sleep(0.1)
        finally:
            owner.say("stopped in good order")

    owner.run(work)
    owner.loop.call_later(0.1, owner.say, "late")
    owner.world.run_until(50_000)
    owner.die()
    owner.world.run_until(1_000_000)
    assert owner.said == []
    bury(owner.left)


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_disk_that_kills_ends_the_process_there(in_a_thread: bool) -> None:
    owner = an_owner()

    def work() -> None:
        owner.say("works")
        raise Killed

    async def begin() -> None:
        if in_a_thread:
            await asyncio.get_running_loop().run_in_executor(None, work)
        else:
            work()

    owner.run(begin)
    owner.loop.call_later(0.1, owner.say, "late")
    owner.world.run_until(1_000_000)
    assert numbers(owner) == ["works"]
    assert not owner.loop.alive
    bury(owner.left)


def test_what_a_callback_raises_ends_the_run() -> None:
    owner = an_owner()
    owner.loop.call_later(0.1, lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="node 0"):
        owner.world.run_until(1_000_000)


# Connections.


def test_frames_arrive_once_and_in_order_however_bad_the_link_is() -> None:
    owner, end, other, other_end = connected()
    network: Network = owner.cluster.network
    network.slow = network.drop = 0.3
    receive_each(other, other_end)
    for number in range(100):
        owner.world.at(number * 10_000, None, send, end, number)
    for at in range(100_000, 900_000, 100_000):
        owner.world.at(at, None, network.cut, 0, 1)
        owner.world.at(at + 50_000, None, network.heal)
    owner.world.run_until(60_000_000)
    assert numbers(other) == list(range(100))


def test_what_a_mute_link_holds_comes_when_it_is_heard_again() -> None:
    owner, end, other, other_end = connected()
    network: Network = owner.cluster.network
    receive_each(other, other_end)
    network.mute(0, 1, "positions")
    send(end, 1)
    owner.world.run_until(1_000_000)
    assert other.said == []
    network.unmute(0, 1, "positions")
    owner.world.run_until(2_000_000)
    assert numbers(other) == [1]


def test_a_frozen_process_finds_what_came_meanwhile_in_order() -> None:
    owner, end, other, other_end = connected()
    receive_each(other, other_end)
    other.loop.paused_until = 400_000
    for number in range(20):
        owner.world.at(number * 30_000, None, send, end, number)
    owner.world.run_until(1_000_000)
    assert numbers(other) == list(range(20))
    assert min(now for now, _ in other.said) == 400_000


def test_the_other_end_of_a_killed_process_hears_what_it_had_sent_and_then_its_end() -> None:
    owner, end, other, other_end = connected()
    receive_each(other, other_end)
    send(end, 1)
    owner.die()
    owner.world.run_until(1_000_000)
    assert numbers(other) == [1, EOFError]
    other_end.shut_down()
    with pytest.raises(OSError, match="ended"):
        other_end.start(Kind.POSITIONS, 0, pb.Positions())


def test_a_paused_reader_is_handed_nothing_until_it_resumes() -> None:
    owner, end, other, other_end = connected()
    receive_each(other, other_end)
    owner.world.run_until(1_000)
    other_end.pause_reading()
    send(end, 1)
    owner.world.run_until(500_000)
    assert other.said == []
    other.loop.enter(other_end.resume_reading)
    owner.world.run_until(600_000)
    assert numbers(other) == [1]
