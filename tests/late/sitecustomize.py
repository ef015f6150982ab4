"""Python runs this at its start in every process that `python -m tests late` and its tests begin:
this folder is in PYTHONPATH then. It makes the servers among them hear late of the metadata."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from random import Random
from types import ModuleType
from typing import Any

VARIABLE = "LATE_METADATA"
"""In the environment: the seed, a space, and the longest time in seconds."""
SHORTEST_SECONDS = 0.1
BUILDS_SERVERS = "jetstream_server.node.build"


def make_late(build: ModuleType) -> None:
    """Have the module build servers that hear late."""
    seed, longest = os.environ[VARIABLE].split()
    prompt: Any = build.__dict__["RaftMetadataLog"]

    class LateMetadataLog(prompt):  # type: ignore[misc]
        def __init__(self, config: Any, *others: Any) -> None:
            super().__init__(config, *others)
            self._random = Random(f"{seed} {config.node_id}")
            self._to_hear: deque[Callable[[], None]] = deque()

        def _on_news(self, news: Any) -> None:
            self._later(partial(super()._on_news, news))

        def _on_status(self, status: Any) -> None:
            self._later(partial(super()._on_status, status))

        def _on_failed(self, reason: str) -> None:
            self._later(partial(super()._on_failed, reason))

        def _later(self, hear: Callable[[], None]) -> None:
            self._to_hear.append(hear)
            seconds = self._random.uniform(SHORTEST_SECONDS, float(longest))
            self._loop.call_later(seconds, self._hear_next)

        def _hear_next(self) -> None:
            self._to_hear.popleft()()

    setattr(build, "RaftMetadataLog", LateMetadataLog)  # noqa: B010


class _OnImport(MetaPathFinder):
    """Changes the module as soon as it is imported: most processes never do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != BUILDS_SERVERS:
            return None
        sys.meta_path.remove(self)
        found = find_spec(fullname)
        assert found is not None
        assert found.loader is not None
        execute = found.loader.exec_module

        def execute_and_make_late(module: ModuleType) -> None:
            execute(module)
            make_late(module)

        setattr(found.loader, "exec_module", execute_and_make_late)  # noqa: B010
        return found


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _OnImport())
