"""`python -m tests.support.forked_cluster …` is `python -m examples.cluster …`, and what that
starts are forks. This process is a fork itself, of one that has imported the server for them."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

from examples.cluster import __main__, local
from examples.cluster.processes import Child, Processes
from tests.support.fork_server import Request, become, can_fork, run


class Fork:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.005)
        return code


class Forks(Processes):
    def _launch(self, arguments: list[str], environment: dict[str, str], log: int) -> Child:
        if not can_fork(arguments):
            return super()._launch(arguments, environment, log)
        if (pid := os.fork()) == 0:
            _be(Request(arguments[2], arguments[3:], environment, os.getcwd(), True), log)
        return Fork(pid)


def _be(request: Request, log: int) -> NoReturn:
    """Nothing of the command goes on in the node."""
    code: object = 1
    try:
        run(become(request, [os.open(os.devnull, os.O_RDONLY), os.dup(log), os.dup(log)]))
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  as Python would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    local.Processes = Forks  # type: ignore[misc]
    __main__.main()
