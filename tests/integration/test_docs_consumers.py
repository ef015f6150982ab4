"""The page about consumers: its examples run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"


def test_the_examples_of_the_page_run(
    own_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    own_server.start()
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 10
    program = "\n".join(blocks).replace("localhost:9292", own_server.grpc)
    exec(compile(program, "consumers.md", "exec"), {})
    assert "3 b'order 3'" in capsys.readouterr().out
