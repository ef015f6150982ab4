"""The processes of a cluster of the tests: its nodes are forked, not started anew.

tests/integration/test_example_cluster.py shows the cluster that starts each anew.
"""

from __future__ import annotations

from examples.cluster.processes import Child, Processes
from tests.support.fork_server import can_fork, fork_server


class ForkedNodes(Processes):
    """/proc shows the fork server's environment for them: they are known by their pids."""

    def _launch(self, arguments: list[str], environment: dict[str, str], log: int) -> Child:
        if not can_fork(arguments):
            return super()._launch(arguments, environment, log)
        return fork_server.start(
            arguments, environment=environment, stdout=log, stderr=log, new_session=True
        )

    def _started(self, name: str, process: Child) -> None:
        self._children[name] = process

    def _name(self, pid: int) -> str:
        # One of its children has no session of its own yet, right after the fork.
        name = self._child(pid)
        return super()._name(pid) if name is None else name

    def _mark_of(self, pid: int) -> str:
        name = self._child(pid)
        return super()._mark_of(pid) if name is None else name

    def _child(self, pid: int) -> str | None:
        """The name of that child, "" once it has ended; None: it is none of these."""
        for name, child in tuple(self._children.items()):
            if child.pid == pid:
                return "" if child.poll() is not None else name
        return None

    def last_words(self, name: str) -> str:
        """A signal leaves none in the log."""
        child = self._children.get(name)
        status = child and child.poll()
        said = super().last_words(name)
        return f"{said} (ended by signal {-status})" if status and status < 0 else said
