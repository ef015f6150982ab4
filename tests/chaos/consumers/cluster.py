"""The cluster of a run: that of the mixed chaos, with the streams of the programs."""

from __future__ import annotations

from typing import Any

from jetstream_client import Client
from tests.chaos.consumers.checker import Stored
from tests.chaos.consumers.streams import INPUT, OUTPUT, PARTS, PARTS_FIRST, WINDOW_SECONDS
from tests.chaos.mixed.cluster import REPLICAS, MixedCluster

READ_SECONDS = 60.0


class ProgramCluster(MixedCluster):
    """parts: how many streams the keyed group has, as far as anybody knows."""

    parts = PARTS_FIRST

    def create_streams(self) -> None:
        with self.client() as client:
            settings: dict[str, Any] = {
                "replicas": REPLICAS,
                "duplicate_window": WINDOW_SECONDS,
            }
            for name in (INPUT, OUTPUT):
                self.wait_for(
                    f"{name} exists",
                    lambda name=name: bool(  # type: ignore[misc]
                        client.create_stream(name, subject=name, **settings)
                    ),
                )
        self.grow(PARTS_FIRST)

    def grow(self, streams: int) -> None:
        """Raises JetstreamError; a repetition finishes what was begun."""
        with self.client() as client:
            client.create_group(PARTS, subject=PARTS, streams=streams, replicas=REPLICAS)
        self.parts = max(self.parts, streams)

    def client(self) -> Client:
        return Client(self.servers, timeout=20.0)

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(f"{PARTS}-{number}" for number in range(self.parts))

    @property
    def stream_names(self) -> tuple[str, ...]:
        return (INPUT, OUTPUT, *self.part_names)

    def ends(self) -> dict[str, int]:
        """Where each stream ends. Raises JetstreamError."""
        with self.client() as client:
            return {name: client.offset_at(name, "latest") for name in self.stream_names}

    def logs(self) -> dict[str, list[Stored]]:
        """All records of all streams. Raises JetstreamError."""
        found = {}
        with self.client() as client:
            for name in self.stream_names:
                with client.consume(name, stop="latest", patience=READ_SECONDS) as consumer:
                    found[name] = [
                        Stored(
                            each.offset,
                            (each.value or b"").decode(errors="replace"),
                            None if each.key is None else each.key.decode(errors="replace"),
                        )
                        for each in consumer
                    ]
        return found
