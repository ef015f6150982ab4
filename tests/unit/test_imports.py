"""Every module can be imported by itself, with each Python and without what is optional."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

from tests.support.sources import TREE

OF_EXTRAS = {"duckdb", "kafka", "opentelemetry", "pandas", "polars", "pyarrow"}
"""They may be missing where `scripts/pythons --quick` runs."""


@pytest.mark.parametrize("package", ["jetstream_protocol", "jetstream_client", "jetstream_server"])
def test_every_module_can_be_imported(package: str) -> None:
    paths = importlib.import_module(package).__path__
    names = [found.name for found in pkgutil.walk_packages(paths, f"{package}.")]
    assert len(names) > 20
    for name in names:
        if name.endswith("__main__"):
            continue  # It runs.
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in OF_EXTRAS:
                raise


BROUGHT_BY_EXTRAS = re.compile(r"^\s*(from|import) (duckdb|kafka|numpy|obstore|pyarrow)\b", re.M)
FOR_TYPE_CHECKERS = re.compile(r"^if TYPE_CHECKING:\n(    .*\n|\n)+", re.M)
GUARDED = re.compile(r"with needed_by\(|from jetstream_client.reading.arrow ")


def test_who_imports_a_package_of_an_extra_names_the_extra_where_it_is_missing() -> None:
    """By `needed_by`, or by what it imports first. A traceback would be all that users get."""
    bare = [
        str(path.relative_to(TREE))
        for path in (TREE / "src/jetstream_client").rglob("*.py")
        if BROUGHT_BY_EXTRAS.search(text := FOR_TYPE_CHECKERS.sub("", path.read_text()))
        and not GUARDED.search(text)
    ]
    assert bare == []
