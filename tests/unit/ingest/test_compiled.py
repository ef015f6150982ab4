from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from jetstream_server.ingest.nats.compiled import compiled, why_pure

WHICH = (
    "from jetstream_server.ingest.nats.compiled import compiled, why_pure;"
    " print(compiled, why_pure)"
)


def which(**environment: str) -> str:
    """What a process with that environment uses."""
    run = subprocess.run(
        [sys.executable, "-c", WHICH],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def test_plain_python_is_used_where_it_is_asked_for() -> None:
    assert which(JETSTREAM_PURE="1") == "None JETSTREAM_PURE is set\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: there is no extension")
def test_the_extension_is_used_where_it_can_be_built() -> None:
    assert "_columns" in which(JETSTREAM_PURE="0")


def test_what_is_used_has_a_reason() -> None:
    assert (compiled is None) == bool(why_pure)
