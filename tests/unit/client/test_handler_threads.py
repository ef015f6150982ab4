"""Threads that call a handler: what the handler raises reaches the caller, whatever it is."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from jetstream_client.processing.threads import HandlerThreads


def call(function: object, seconds: float | None = None) -> object:
    async def main() -> object:
        threads: HandlerThreads[int, object] = HandlerThreads(function, seconds)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(60):
                return await threads.call(3)
        finally:
            threads.close()

    return asyncio.run(main())


def test_what_the_handler_returns_is_the_result() -> None:
    assert call(lambda number: number + 1) == 4
    assert call(lambda number: number + 1, 5.0) == 4


def cancel(_: object) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("seconds", [None, 5.0])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda _: next(iter(())), StopIteration),
        (lambda _: sys.exit(3), SystemExit),
        (cancel, asyncio.CancelledError),
    ],
    ids=["takes the next of nothing", "exits", "is cancelled"],
)
def test_a_handler_that_raises_what_is_no_error_has_failed(
    function: Callable[[object], object], kind: type[BaseException], seconds: float | None
) -> None:
    with pytest.raises(RuntimeError, match=f"the handler raised {kind.__name__}") as raised:
        call(function, seconds)
    assert isinstance(raised.value.__cause__, kind)
