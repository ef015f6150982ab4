"""Runs each errand on a real server, many times."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

from jetstream_protocol.generated import api_pb2, common_pb2
from tests.support.api import Api, DataPlane, call, raw_nats
from tests.support.server import ServerProcess
from tests.walks.traced_server import Step, Walk

TIMES: Final = 30
LARGE: Final = bytes(100_000)
"""Of which an answer is sent by `sendfile`."""


class TracedServer(ServerProcess):
    """Writes its walks to a file when it stops."""

    def __init__(self, folder: Path) -> None:
        # A profile does not see functions that are compiled.
        super().__init__(folder / "data", environment={"JETSTREAM_PURE": "1"})
        self.walks = folder / "walks.json"

    def command(self) -> list[str]:
        module = "tests.walks.traced_server"
        # -u: a process of its own, which imports ingest in that form; not one that is forked.
        return [sys.executable, "-u", "-m", module, str(self.walks), *super().command()[3:]]


def walks_of(folder: Path) -> list[Walk]:
    """All walks of a server that did each errand TIMES times, one at a time."""
    server = TracedServer(folder)
    server.start()
    try:
        api = Api(server.grpc)
        # At a lower feature level a command goes another way.
        while not call(api.streams.ListStreams, api_pb2.ListStreamsRequest()).ack_cluster:
            time.sleep(0.01)
        api.create("walk", "walk")
        _publish(server, [LARGE] * 4 + [b"x"] * TIMES)
        plane = DataPlane(server.data_address)
        for _ in range(TIMES):
            plane.fetch("walk", 1, bytes_max=len(LARGE))
        plane.close()
        stream = common_pb2.StreamRef(name="walk")
        for number in range(TIMES):
            config = api_pb2.StreamConfig(max_bytes=10**9 + number)
            request = api_pb2.AlterStreamRequest(stream=stream, config=config)
            call(api.streams.AlterStream, request)
        api.close()
        assert server.stop() == 0, server.log_text
    finally:
        server.kill()
    walks = [
        Walk(each["errand"], [Step(**step) for step in each["steps"]], each["json"])
        for each in json.loads(server.walks.read_text())
    ]
    return [each for each in walks if each.errand != "command" or _alters(each)]


def _alters(walk: Walk) -> bool:
    return any(step.function == "AlterStream" for step in walk.steps)


def _publish(server: TracedServer, values: list[bytes]) -> None:
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.walk")
        for value in values:
            nats.publish("walk", value, "_INBOX.walk")
            assert b'"seq"' in nats.message()[1]
