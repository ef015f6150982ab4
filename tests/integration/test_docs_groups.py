"""The pages about keyed groups, and for those who come from elsewhere: their examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.server import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"keyed_groups.md": 4, "coming_from_kafka.md": 6, "coming_from_jetstream.md": 8}


@pytest.fixture
def empty_server(server: ServerProcess) -> ServerProcess:
    """Without what the page before it has left: all pages speak of orders."""
    with Client(server.grpc, timeout=60) as client:
        for cursor in client.list_cursors():
            client.delete_cursor(cursor.name, cursor.stream)
        for stream in client.list_streams():
            client.delete_stream(stream)
    return server


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_the_page_run(page: str, empty_server: ServerProcess) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) == PAGES[page]
    program = "\n".join(blocks).replace("localhost:9292", empty_server.grpc)
    program = program.replace("nats://localhost:4222", empty_server.nats)
    exec(compile(program, page, "exec"), {})
