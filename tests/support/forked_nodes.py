"""The processes of a cluster of the tests: its nodes are forked, not started anew.

tests/integration/test_example_cluster.py shows the cluster that starts each anew.
"""

from __future__ import annotations

from examples.cluster.processes import Child, Processes
from tests.support.fork_server import can_fork, fork_server


class ForkedNodes(Processes):
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
