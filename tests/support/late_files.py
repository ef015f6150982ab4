"""A file of tests is imported and collected by the worker that runs it, when its turn comes.

pytest-xdist lets each worker collect everything first. With `--late-files` a worker collects files,
each as one item; in its place the file's tests are collected and run. So a file is imported once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest


class LateFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        whole = WholeFile.from_parent(self, name="tests")
        whole.add_marker(pytest.mark.timeout(0))  # Each test has its own.
        yield whole


class WholeFile(pytest.Item):
    """Stands for the tests of a file."""

    def runtest(self) -> None:
        raise AssertionError("the tests of the file are run in its place")

    def tests(self) -> list[pytest.Item]:
        assert self.parent is not None
        folder = self.parent.parent
        module = pytest.Module.from_parent(folder, path=self.path)
        found = list(self.session.genitems(module))
        self.config.hook.pytest_collection_modifyitems(
            session=self.session, config=self.config, items=found
        )
        return found


class LateFiles:
    """The hooks of a worker."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> LateFile:
        return LateFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not isinstance(item, WholeFile):
            return None
        session = item.session
        place = session.items.index(item)
        tests = item.tests()
        gc.collect()
        gc.freeze()  # As after a collection of everything.
        for test, following in pairwise([*tests, nextitem]):
            assert test is not None
            session.items[place] = test  # Of which the worker reports.
            item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        return True
