"""The processes of a cluster of the tests: its nodes are forked, not started anew.

tests/integration/test_example_cluster.py shows the cluster that starts each anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.cluster.processes import Child, Processes
from tests.support.fork_server import can_fork, fork_server


class ForkedNodes(Processes):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._begun: dict[str, Child] = {}

    def started(self) -> dict[str, int]:
        """Those that were started here and are alive, by name. `pids` reads the environments of all
        processes of the machine for that."""
        begun = dict(self._begun)  # Another thread may start one meanwhile.
        return {name: child.pid for name, child in begun.items() if child.poll() is None}

    def _started(self, name: str, process: Child) -> None:
        self._begun[name] = process
        super()._started(name, process)

    def _launch(self, arguments: list[str], environment: dict[str, str], log: int) -> Child:
        if not can_fork(arguments):
            return super()._launch(arguments, environment, log)
        return fork_server.start(
            arguments, environment=environment, stdout=log, stderr=log, new_session=True
        )

    def last_words(self, name: str) -> str:
        """A signal leaves none in the log."""
        child = self._children.get(name)
        status = child and child.poll()
        said = super().last_words(name)
        return f"{said} (ended by signal {-status})" if status and status < 0 else said
