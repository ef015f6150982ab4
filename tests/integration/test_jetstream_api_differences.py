"""A nats-server with JetStream and this server are asked the same: both answer the same, but for
what the table of differences names, each with its reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.support.differential.differences import EXPECTED, differences
from tests.support.differential.side import answers_of
from tests.support.differential.steps import STEPS
from tests.support.jetstream_api import api_server, until_it_takes_every_setting
from tests.support.leaf import DOMAIN, LeafServer, asking, client_of
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer


@on_loop
async def test_answers_are_those_of_nats_server_but_for_known_differences(tmp_path: Path) -> None:
    settings = f'jetstream {{ store_dir: "{tmp_path / "nats"}", domain: {DOMAIN} }}'
    with LeafServer() as hub, api_server(tmp_path / "data", hub), NatsServer(settings) as peer:
        async with asking(hub.url) as our_client, client_of(peer.url) as their_client:
            await until_it_takes_every_setting(our_client)
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
