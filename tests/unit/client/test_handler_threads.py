"""Threads that call a handler: what the handler raises reaches the caller, whatever it is."""

import asyncio

import pytest

from jetstream_client.processing.threads import HandlerThreads


def call(function: object, seconds: float | None = None) -> object:
    async def main() -> object:
        threads: HandlerThreads[int, object] = HandlerThreads(function, seconds)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(10):
                return await threads.call(3)
        finally:
            threads.close()

    return asyncio.run(main())


def test_what_the_handler_returns_is_the_result() -> None:
    assert call(lambda number: number + 1) == 4
    assert call(lambda number: number + 1, 5.0) == 4


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_a_handler_that_takes_the_next_of_nothing_has_failed(seconds: float | None) -> None:
    with pytest.raises(RuntimeError, match="the handler raised StopIteration") as raised:
        call(lambda _: next(iter(())), seconds)
    assert isinstance(raised.value.__cause__, StopIteration)
