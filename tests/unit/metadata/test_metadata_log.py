import asyncio
from typing import Any

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.watchers import Watchers
from jetstream_server.metadata.state.changes import Change, ControllerChanged
from jetstream_server.metadata.state.cluster import ControllerClaim


def change(epoch: int) -> Change:
    return ControllerChanged(
        ControllerClaim(NodeId(0), epoch), ControllerClaim(NodeId(0), epoch + 1)
    )


def test_every_watcher_sees_every_change_in_order() -> None:
    async def main() -> None:
        watchers = Watchers()
        seen: list[list[Change]] = [[], []]
        for changes in seen:
            watchers.add(changes.append)
        watchers.notify([change(1), change(2)])
        watchers.notify([change(3)])
        await asyncio.sleep(0)
        assert seen == [[change(1), change(2), change(3)]] * 2

    asyncio.run(main())


def test_a_watcher_that_has_stopped_sees_not_even_what_was_on_its_way() -> None:
    async def main() -> None:
        watchers = Watchers()
        seen: list[Change] = []
        stop = watchers.add(seen.append)
        watchers.notify([change(1)])
        stop()
        stop()
        await asyncio.sleep(0)
        assert seen == []

    asyncio.run(main())


def test_one_watchers_failure_is_reported_and_not_anothers() -> None:
    async def main() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        watchers = Watchers()
        seen: list[Change] = []
        watchers.add(lambda _: 1 // 0)
        watchers.add(seen.append)
        watchers.notify([change(1), change(2)])
        await asyncio.sleep(0)
        assert seen == [change(1), change(2)]
        assert len(reported) == 2

    asyncio.run(main())
