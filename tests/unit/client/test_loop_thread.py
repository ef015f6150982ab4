"""Callers without an event loop: the thread that they wait for."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from jetstream_client import InvalidRequestError, NoStreamError, UnavailableError
from jetstream_client._closing import ClientClosedError
from jetstream_client._loop_thread import LoopThread

WAITS_FOR_EVER = """
import asyncio, os, signal, threading, time
from jetstream_client._loop_thread import LoopThread

thread = LoopThread()
thread.run(asyncio.sleep(0))
# Another thread gets the signal, so it does not wake the one that waits.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    thread.run(asyncio.sleep(3600))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_does_not_wake_the_waiting_thread_ends_its_wait_all_the_same() -> None:
    """Python notes a signal that comes just before a wait begins, and waits."""
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_what_the_garbage_collector_ends_does_not_stop_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the iterator of a `Scan` does at its end: `post`. The collector may run whenever memory is
    allocated."""
    thread = LoopThread()
    thread.run(asyncio.sleep(0))
    loop, posted = thread._started[""].loop, threading.Event()
    submit = loop.call_soon_threadsafe

    async def ends() -> None:
        posted.set()

    def reading() -> Iterator[None]:
        try:
            while True:
                yield
        finally:
            thread.post(ends())

    class Holder:
        """A cycle, as a traceback makes one."""

        def __init__(self) -> None:
            self.itself, self.reading = self, reading()
            next(self.reading)

    def collecting(*call: Any, **options: Any) -> Any:
        gc.collect()
        return submit(*call, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", collecting)
    gc.disable()
    try:
        Holder()
        caller = threading.Thread(target=lambda: thread.run(asyncio.sleep(0)), daemon=True)
        caller.start()
        caller.join(60.0)
        assert not caller.is_alive(), "the call waits for what its own thread holds, for ever"
        assert posted.wait(60.0)
    finally:
        gc.enable()
    thread.close()


HANDLED = """
import asyncio, os, signal, sys, threading
from jetstream_client._loop_thread import LoopThread

thread = LoopThread()
signal.signal(signal.SIGALRM, lambda *_: thread.run(asyncio.sleep(0)))
left = [0]

def alarm(frame, event, argument):
    if "jetstream_client" in frame.f_code.co_filename and threading.current_thread() is main:
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

main = threading.current_thread()
for number in range(1, 30):
    thread = LoopThread()
    left[0] = number
    sys.setprofile(alarm)
    thread.run(asyncio.sleep(0))
    if number % 2:
        thread.post(asyncio.sleep(0))
    sys.setprofile(None)
    thread.close()
print("done", threading.active_count())
"""


def test_a_signal_handler_may_use_the_client_in_the_middle_of_any_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLED], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done 1\n", "")


def test_threads_that_use_it_first_at_the_same_time_share_one_loop() -> None:
    thread = LoopThread()
    loops: list[object] = []

    async def loop() -> None:
        loops.append(asyncio.get_running_loop())

    callers = [threading.Thread(target=lambda: thread.run(loop())) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60.0)
    assert (len(loops), len(set(loops))) == (16, 1)
    thread.close()


def test_our_errors_show_nothing_of_what_is_inside(caplog: pytest.LogCaptureFixture) -> None:
    """But in the log, for whoever looks for it."""

    async def inside() -> None:
        try:
            raise NoStreamError("nobody")
        except NoStreamError as error:
            raise InvalidRequestError("no") from error

    caplog.set_level(logging.DEBUG, "jetstream_client")
    thread = LoopThread()
    with pytest.raises(InvalidRequestError) as raised:
        thread.run(inside())
    thread.close()
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)] == [
        "test_our_errors_show_nothing_of_what_is_inside",
        "run",
    ]
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.__traceback__ is None
    assert "in inside" in caplog.text


def test_an_error_that_an_attempt_had_before_is_shown_once() -> None:
    async def again() -> None:
        raise UnavailableError("nobody answers") from UnavailableError("nobody answers")

    thread = LoopThread()
    with pytest.raises(UnavailableError) as raised:
        thread.run(again())
    thread.close()
    assert raised.value.__cause__ is None


def test_a_call_that_waits_as_it_is_closed_hears_of_that() -> None:
    thread, waits, heard = LoopThread(), threading.Event(), list[BaseException]()

    async def wait() -> None:
        waits.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.run(wait())
        except BaseException as error:  # noqa: BLE001  looked at below
            heard.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waits.wait(60.0)
    thread.close()
    caller.join(60.0)
    assert [type(error) for error in heard] == [ClientClosedError]


def test_no_call_hangs_that_comes_as_it_is_closed() -> None:
    for _ in range(20):
        thread = LoopThread()
        thread.run(asyncio.sleep(0))

        def call(thread: LoopThread = thread) -> None:
            with suppress(InvalidRequestError):
                while True:
                    thread.run(asyncio.sleep(0))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        thread.close()
        for caller in callers:
            caller.join(60.0)
            assert not caller.is_alive()


def test_an_interrupt_as_a_lock_is_taken_hangs_no_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python runs the handlers of signals between the taking of a lock and what releases it."""
    real, me = threading.Condition.__enter__, threading.get_ident()
    interrupts = [True]

    def taken(self: threading.Condition) -> bool:
        found = real(self)
        if interrupts and threading.get_ident() == me:
            interrupts.clear()
            raise KeyboardInterrupt
        return found

    thread = LoopThread()
    thread.run(asyncio.sleep(0))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", taken)
        for use in (thread.run, thread.post):
            interrupts[:] = [True]
            with suppress(KeyboardInterrupt):
                use(asyncio.sleep(0.01))
    found: list[str] = []
    later = threading.Thread(target=lambda: found.append(thread.run(asyncio.sleep(0.1, "later"))))
    later.daemon = True
    later.start()
    later.join(60)
    assert found == ["later"]
    thread.close()


def test_a_thread_that_nothing_refers_to_ends_after_what_was_posted() -> None:
    done = []

    async def ends() -> None:
        done.append("end")

    thread = LoopThread(ends)
    thread.run(asyncio.sleep(0))
    running = thread._started[""].thread

    async def closes() -> None:
        await asyncio.sleep(0.05)
        done.append("posted")

    async def goes_on() -> None:
        await asyncio.sleep(3600)

    thread.run(_spawn(goes_on()))
    thread.post(closes())
    del thread
    gc.collect()
    running.join(60.0)
    assert not running.is_alive()
    assert done == ["posted", "end"]


async def _spawn(coroutine: Any) -> None:
    _tasks.append(asyncio.ensure_future(coroutine))


_tasks: list[Any] = []
