"""jetstream-server that writes down which of its functions an errand enters.

    python -m tests.walks.traced_server FILE ARGUMENTS…

An errand begins in one of BEGINNINGS. What happens because of it is found as asyncio finds it: a
context variable goes with every call, callback and task. HAND_OVERS names the threads to which a
context does not go. FILE has all walks once the server has stopped: for each errand the name of the
beginning and its steps (`Step`), as JSON.
"""

from __future__ import annotations

import dis
import inspect
import json
import sys
import threading
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

SOURCE: Final = str(Path(__file__).resolve().parents[2] / "src") + "/"
PACKAGES: Final = ("jetstream_server/", "jetstream_protocol/")

BEGINNINGS: Final = {
    "jetstream_server/ingest/nats/link.py:buffer_updated": "message",
    "jetstream_server/net/frame_reader.py:_readable": "fetch",
    "jetstream_server/serving/grpc/error_interceptor.py:intercept_service": "command",
}
HAND_OVERS: Final = {
    "jetstream_server/log/flusher.py:request": "jetstream_server/log/commit_log.py:flush",
    "jetstream_server/metadata/member/member_loop.py:_once_synced":
        "jetstream_server/metadata/raft/journal.py:sync",
}  # fmt: skip
"""Who asks another thread for something, and what that thread calls then."""
HOSTS: Final = (
    "jetstream_server/node/cli.py",
    "jetstream_server/metadata/member/member.py:_run",
    "jetstream_server/serving/grpc/grpc_loop.py:_serve",
)
"""They run an event loop: who is called by the loop is not called by them."""
OTHER_ERRANDS: Final = (
    "jetstream_server/metadata/client/watchers.py:_call",
    "jetstream_server/metadata/member/controller_context.py:turn",
)
"""What is entered there does not count: what watchers do with a change of the metadata, and the
sessions, which have a share of every turn of the metadata thread."""
JSON: Final = {"dumps": "written", "loads": "read"}


@dataclass(frozen=True, slots=True)
class Step:
    """A function was entered. caller: the file that called it, or passed it on to be called.
    hops: on another thread than that."""

    caller: str
    file: str
    function: str
    hops: bool


@dataclass(slots=True)
class Walk:
    errand: str
    steps: list[Step] = field(default_factory=list)
    json: list[str] = field(default_factory=list)
    """What was converted to JSON or from it, as the function that had it done."""


@dataclass(frozen=True, slots=True)
class _Here:
    walk: Walk
    file: str
    thread: int


_here: ContextVar[_Here | None] = ContextVar("here", default=None)
_walks: list[Walk] = []
_handed_over: dict[str, _Here] = {}
_set_aside: dict[FrameType, _Here] = {}
_TO_THREADS: Final = set(HAND_OVERS.values())


@cache
def _product_file(code: CodeType) -> str | None:
    """The file of a function of the product; None for anything else."""
    path = code.co_filename
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    if not is_function or not path.startswith(SOURCE) or "/generated/" in path:
        return None
    name = path[len(SOURCE) :]
    return name if name.startswith(PACKAGES) else None


@cache
def _first_instruction(code: CodeType) -> int:
    """Up to this instruction a call of a coroutine or generator is its first."""
    names = [each.opname for each in dis.get_instructions(code)]
    offsets = [each.offset for each in dis.get_instructions(code)]
    return offsets[names.index("RESUME")]


def _is_resumed(frame: FrameType) -> bool:
    flags = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    code = frame.f_code
    return bool(code.co_flags & flags) and frame.f_lasti > _first_instruction(code)


def _caller_of(frame: FrameType) -> str | None:
    """The nearest file of the product on the stack, which may be the same."""
    above = frame.f_back
    while above is not None:
        file = _product_file(above.f_code)
        if file is not None:
            is_host = file in HOSTS or f"{file}:{above.f_code.co_name}" in HOSTS
            return None if is_host else file
        above = above.f_back
    return None


def _profile(frame: FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    file = _product_file(code)
    if file is None:
        if event == "call" and code.co_filename == json.__file__ and code.co_name in JSON:
            _converted(frame)
        return
    name = f"{file}:{code.co_name}"
    if event == "call":
        _entered(frame, file, name)
    elif event == "return":
        _left(frame, name)


def _converted(frame: FrameType) -> None:
    here, caller = _here.get(), frame.f_back
    if here is not None and caller is not None and (file := _product_file(caller.f_code)):
        done = JSON[frame.f_code.co_name]
        here.walk.json.append(f"{done} in {file}:{caller.f_code.co_name}")


def _entered(frame: FrameType, file: str, name: str) -> None:
    here, thread = _here.get(), threading.get_ident()
    if name in OTHER_ERRANDS and here is not None:
        _set_aside[frame] = here
        _here.set(None)
        return
    if name in _TO_THREADS and name in _handed_over:
        here = _handed_over.pop(name)
    if name in BEGINNINGS and not _is_resumed(frame):
        here = _Here(Walk(BEGINNINGS[name]), "", thread)
        _walks.append(here.walk)
    if here is None:
        return
    if not _is_resumed(frame):
        caller = _caller_of(frame) if here.thread == thread else None
        hops = here.thread != thread
        step = Step(caller or here.file, file, frame.f_code.co_name, hops)
        here.walk.steps.append(step)
    if name in HAND_OVERS:
        _handed_over[HAND_OVERS[name]] = _Here(here.walk, file, thread)
    _here.set(_Here(here.walk, file, thread))


def _left(frame: FrameType, name: str) -> None:
    here = _here.get() if frame not in _set_aside else _set_aside.pop(frame)
    if here is None:
        return
    caller = _caller_of(frame)
    if caller is not None:
        _here.set(_Here(here.walk, caller, here.thread))
    elif name in OTHER_ERRANDS or (
        name in BEGINNINGS and not frame.f_code.co_flags & inspect.CO_COROUTINE
    ):
        _here.set(None)


def main() -> None:
    from jetstream_server.node import cli

    path = Path(sys.argv.pop(1))
    threading.setprofile(_profile)
    sys.setprofile(_profile)
    try:
        cli.main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        path.write_text(json.dumps([asdict(walk) for walk in _walks]))


if __name__ == "__main__":
    main()
