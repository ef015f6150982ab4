"""A nats-server with JetStream and this server are asked the same: both answer the same, but for
what the table of differences names, each with its reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from nats.aio.client import Client as NatsClient

from tests.support.differential.differences import EXPECTED, differences
from tests.support.differential.side import answers_of
from tests.support.differential.steps import STEPS
from tests.support.jetstream_api import api_server
from tests.support.leaf import DOMAIN, LeafServer, answer, asking, client_of
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer

FIRST = {"name": "first", "max_msg_size": 1000}


async def _settled(client: NatsClient) -> None:
    """Return once a server that has just begun takes every setting of streams."""
    async with asyncio.timeout(60):
        while "error" in (told := await answer(client, "STREAM.CREATE.first", FIRST)):
            assert told["error"]["err_code"] == 10008, told
            await asyncio.sleep(0.05)
    await answer(client, "STREAM.DELETE.first")


@on_loop
async def test_answers_are_those_of_nats_server_but_for_known_differences(tmp_path: Path) -> None:
    settings = f'jetstream {{ store_dir: "{tmp_path / "nats"}", domain: {DOMAIN} }}'
    with LeafServer() as hub, api_server(tmp_path / "data", hub), NatsServer(settings) as peer:
        async with asking(hub.url) as our_client, client_of(peer.url) as their_client:
            await _settled(our_client)
            theirs, ours = await asyncio.gather(
                answers_of(their_client, STEPS, is_complete=False),
                answers_of(our_client, STEPS, is_complete=True),
            )
    found = {
        step.name: different
        for step in STEPS
        if (different := differences(theirs[step.name], ours[step.name]))
    }
    assert found == {name: expected for name, (_, expected) in EXPECTED.items()}


def test_each_step_has_a_name_of_its_own() -> None:
    names = Counter(step.name for step in STEPS)
    assert [name for name, count in names.items() if count > 1] == []
    assert EXPECTED.keys() <= names.keys()
