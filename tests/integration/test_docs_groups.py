"""The pages about keyed groups, and for those who come from elsewhere: their examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.server import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"keyed_groups.md": 3}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_the_page_run(page: str, server: ServerProcess) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) == PAGES[page]
    program = "\n".join(blocks).replace("localhost:9292", server.grpc)
    exec(compile(program.replace("nats://localhost:4222", server.nats), page, "exec"), {})
