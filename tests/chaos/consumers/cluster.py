"""The cluster of a run: that of the mixed chaos, with the streams of the programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jetstream_client import Client
from tests.chaos.consumers.checker import Purge, Stored
from tests.chaos.consumers.streams import INPUT, OUTPUT, PARTS, PARTS_FIRST, WINDOW_SECONDS
from tests.chaos.mixed.cluster import REPLICAS, MixedCluster

READ_SECONDS = 60.0


class ProgramCluster(MixedCluster):
    """parts: how many streams the keyed group has, as far as anybody knows. purges: those that were
    asked for."""

    parts = PARTS_FIRST

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.purges: list[Purge] = []

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
        security = self.security
        if security is None:
            return Client(self.servers, timeout=20.0)
        return Client(self.servers, timeout=20.0, tls=security.tls, token=security.admin)

    def environment(self) -> dict[str, str]:
        """Of the programs."""
        if self.security is None:
            return {}
        return {**self.security.environment(), "JETSTREAM_NATS_CA": self.security.ca}

    def purge(self, stream: str, share: float) -> int:
        """Remove so much of what there is, but for the last record: who has not read that yet is
        still to have something to read. Returns what is kept from now on. Raises JetstreamError."""
        with self.client() as client:
            start, end = (client.offset_at(stream, each) for each in ("earliest", "latest"))
            if end - start < 2:
                return start
            before = start + int(share * (end - 1 - start))
            self.purges.append(Purge(time.monotonic(), stream, before))
            return client.purge_stream(stream, before)

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

    def starts(self) -> dict[str, int]:
        """The first offset that each stream keeps. Raises JetstreamError."""
        with self.client() as client:
            return {name: client.offset_at(name, "earliest") for name in self.stream_names}

    def logs(self, names: Sequence[str] = ()) -> dict[str, list[Stored]]:
        """All records of those streams, or of all. Raises JetstreamError."""
        found = {}
        with self.client() as client:
            for name in names or self.stream_names:
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
