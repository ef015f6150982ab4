"""Every module can be imported by itself, with each Python and without what is optional."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

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
