"""A nats-server with JetStream and this server are asked the same: both answer the same, but for
what the table of differences names, each with its reason. And all answers have the form of
JetStream's schemas.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import uvloop

from jetstream_server.ingest.nats.server_process import find_binary
from tests.support.differential.differences import EXPECTED, differences
from tests.support.differential.odd_differences import ODD
from tests.support.differential.odd_steps import ODD_STEPS
from tests.support.differential.side import Side
from tests.support.differential.steps import STEPS as FIRST_STEPS
from tests.support.jetstream_api import api_server, until_it_takes_every_setting
from tests.support.leaf import DOMAIN, LeafServer, asking, client_of
from tests.support.nats_server import NatsServer

STEPS = [*FIRST_STEPS, *ODD_STEPS]
DIFFERENCES = EXPECTED | ODD
SCHEMAS = Path(__file__).parents[2] / "build" / "jetstream-schemas"
SECONDS_MAX = 240.0
MISFORMED = {
    "stream_names_response", "stream_list_response", "consumer_names_response",
    "consumer_list_response", "consumer_pause_response",
}  # fmt: skip
"""An error in these fits two of the schema's alternatives, for which it has only one. nats-server's
own answers do, too."""
UNKNOWN = {"consumer_unpin_response"}
"""Their schemas have no errors, or an error only."""


class Answers(NamedTuple):
    """By the names of the steps. bodies: ours that were JSON, unmasked."""

    theirs: dict[str, Any]
    ours: dict[str, Any]
    bodies: list[dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("differences")
    return uvloop.run(asyncio.wait_for(_answers(folder), SECONDS_MAX))


async def _answers(folder: Path) -> Answers:
    settings = f'jetstream {{ store_dir: "{folder / "nats"}", domain: {DOMAIN} }}'
    peer = NatsServer(settings)
    peer.binary = find_binary()  # Other versions answer differently in places.
    with LeafServer() as hub, api_server(folder / "data", hub), peer:
        async with asking(hub.url) as our_client, client_of(peer.url) as their_client:
            await until_it_takes_every_setting(our_client)
            ours = Side(our_client, is_complete=True)
            theirs = Side(their_client, is_complete=False)
            found = await asyncio.gather(theirs.answers(STEPS), ours.answers(STEPS))
    return Answers(*found, ours.bodies)


def test_answers_are_those_of_nats_server_but_for_known_differences(answers: Answers) -> None:
    found = {
        step.name: different
        for step in STEPS
        if (different := differences(answers.theirs[step.name], answers.ours[step.name]))
    }
    assert found == {name: expected for name, (_, expected) in DIFFERENCES.items()}


@pytest.mark.skipif(
    not SCHEMAS.exists(), reason="no schemas: scripts/jetstream-schemas brings them"
)
def test_answers_have_the_form_of_jetstreams_schemas(answers: Answers) -> None:
    wrong = []
    for body in answers.bodies:
        kind = body.get("type", "").rpartition(".")[2]
        if not kind or kind in UNKNOWN or (kind in MISFORMED and "error" in body):
            continue
        schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
        for error in jsonschema.Draft7Validator(schema).iter_errors(body):
            wrong.append((kind, error.message[:500]))
    assert wrong == []


def test_each_step_has_a_name_of_its_own() -> None:
    names = Counter(step.name for step in STEPS)
    assert [name for name, count in names.items() if count > 1] == []
    assert DIFFERENCES.keys() <= names.keys()
