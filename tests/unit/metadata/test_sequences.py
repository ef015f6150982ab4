import asyncio

import pytest

from jetstream_server.metadata.client.sequences import Sequences
from jetstream_server.metadata.state.results import SPAN


def test_none_under_way_is_a_span_behind_the_newest() -> None:
    async def main() -> None:
        sequences = Sequences()
        taken = [await sequences.take() for _ in range(SPAN)]
        assert taken == list(range(SPAN))
        waiting = [asyncio.create_task(sequences.take()) for _ in range(3)]
        for sequence in taken[1:]:
            sequences.give_back(sequence)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting), "the oldest is still under way"
        sequences.give_back(0)
        assert await asyncio.gather(*waiting) == [SPAN, SPAN + 1, SPAN + 2]

    asyncio.run(main())


def test_whoever_waits_is_served_in_turn() -> None:
    async def main() -> None:
        sequences = Sequences()
        for _ in range(SPAN):
            await sequences.take()
        waiting = [asyncio.create_task(sequences.take()) for _ in range(2)]
        await asyncio.sleep(0)
        sequences.give_back(0)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, False]
        sequences.give_back(1)
        assert await waiting[1] == SPAN + 1

    asyncio.run(main())


def test_a_waiter_that_gives_up_leaves_its_turn_to_the_next() -> None:
    async def main() -> None:
        sequences = Sequences()
        for _ in range(SPAN):
            await sequences.take()
        first, second = (asyncio.create_task(sequences.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        sequences.give_back(0)
        assert await second == SPAN

    asyncio.run(main())


def test_a_number_given_in_the_moment_of_giving_up_is_not_lost() -> None:
    async def main() -> None:
        sequences = Sequences()
        for _ in range(SPAN):
            await sequences.take()
        waiter = asyncio.create_task(sequences.take())
        await asyncio.sleep(0)
        sequences.give_back(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        sequences.give_back(1)
        assert await asyncio.wait_for(sequences.take(), 60) == SPAN + 1

    asyncio.run(main())
