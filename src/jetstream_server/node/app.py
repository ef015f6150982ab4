"""One server process: starts, announces itself, and stops after a signal or a failure."""

from __future__ import annotations

import asyncio

import structlog
import uvloop

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.memory import keep_freed_memory
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.node.build import Start, build
from jetstream_server.node.config import Config, ConfigurationError, NodeConfig
from jetstream_server.node.listeners import start_listeners
from jetstream_server.node.memory import spare_collector
from jetstream_server.node.readiness import not_ready
from jetstream_server.node.run_state import RunState, StartError
from jetstream_server.node.server import Server
from jetstream_server.node.stop_signals import stop_signals

ANNOUNCE_SECONDS = 1.0
"""If a node is not ready this many seconds after its start, it says why."""
READY_CHECK_SECONDS = 0.1

logger = structlog.get_logger("jetstream.server")
new_event_loop = uvloop.new_event_loop


async def serve(
    config: Config, node: NodeConfig, accept_voters: bool = False, for_people: bool = False
) -> None:
    """Run the node until SIGTERM or SIGINT. Raises StartError when it cannot start.

    for_people: report readiness for people, not in one line for scripts. The server then ends with
    its terminal (SIGHUP), and otherwise reads certificates and keys again.
    """
    keep_freed_memory()
    stopped = asyncio.Event()
    start = Start(config, node, accept_voters)
    with stop_signals(stopped, None if for_people else start.reload.set):
        await _run(start, stopped, for_people)
    _raise_why_over(start.state)


async def _run(start: Start, stopped: asyncio.Event, for_people: bool) -> None:
    loop = asyncio.get_running_loop()
    state = start.state
    loop.set_exception_handler(state.loop_error)
    ends = (stopped, state.failed, state.folder_gone, state.removed)
    try:
        starting = loop.create_task(_start(start))
        if not await _first_of(starting, *ends):
            await end_tasks(starting)
        if not (stopped.is_set() or state.is_over):
            server = starting.result()
            announcing = run_in_background(_announce(server, for_people), "announcements")
            await _first_of(None, *ends)
            announcing.cancel()
        logger.info("stopping")
    finally:
        await start.stop()


async def _start(start: Start) -> Server:
    try:
        server = await build(start)
        await start_listeners(server, start.stack)
    except JetstreamError as error:
        raise StartError(error.message) from error
    except (OSError, ConfigurationError) as error:
        raise StartError(str(error)) from error
    spare_collector()
    start.state.started()
    return server


def _raise_why_over(state: RunState) -> None:
    if state.folder_gone.is_set():
        raise StartError(
            f"{state.why_gone}; this node has stopped: put the folder back before it starts "
            "again, or it begins with an empty one"
        )
    if state.removed.is_set():
        raise StartError(
            "this node was removed from the cluster while it was not heard, and has stopped: if it "
            "starts again, it joins as a new node, which holds nothing"
        )
    if state.failed.is_set():
        raise StartError("this node cannot go on; its log says why")


async def _announce(server: Server, for_people: bool) -> None:
    """Print that the node is ready once it is. If that takes long, print first why it is not, as
    /readyz does."""
    begun = asyncio.get_running_loop().time()
    has_announced = False
    while reasons := not_ready(server):
        if not has_announced and asyncio.get_running_loop().time() - begun >= ANNOUNCE_SECONDS:
            has_announced = True
            print(server.announcement(reasons, for_people), flush=True)
        await asyncio.sleep(READY_CHECK_SECONDS)
    print(server.announcement([], for_people), flush=True)


async def _first_of(task: asyncio.Task[Server] | None, *events: asyncio.Event) -> bool:
    """Wait for the task or the first of the events. Returns whether it was the task. Raises the
    task's error."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait([*waits, *([task] if task else [])], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if task is None or not task.done():
        return False
    task.result()
    return True
