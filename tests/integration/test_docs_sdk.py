"""The page about the client: its examples run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"


def test_the_examples_of_the_page_run(
    own_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    own_server.start()
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 14
    program = "\n".join(blocks).replace("localhost:9292", own_server.grpc)
    exec(compile(program, "sdk.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "[('orders.eu', 4), ('orders.us', 3)]" in printed
    assert "0 orders.eu b'4 apples'" in printed
