"""The cookbook: its tasks run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"


def test_the_tasks_of_the_cookbook_run(own_server: ServerProcess) -> None:
    own_server.start()
    page = PAGE.read_text()
    assert re.findall(r"^\*\*(\d+)\. ", page, re.MULTILINE) == [str(n) for n in range(1, 26)]
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 24  # The first is what they begin with; Spark has its own.
    program = "\n".join([*blocks, "client.close()"]).replace("localhost:9292", own_server.grpc)
    exec(compile(program, "cookbook.md", "exec"), {})
