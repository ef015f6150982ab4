"""A cluster whose stream refuses records that do not fit its schema, which changes all the time.

Whether a record fits depends on its number and on the version: some always fit, some from the
second version on, some before the third one, some never.

**safety** What a leader appends fits the schema that it knows, and a version that the stream has
had since that leader was elected: a fail-over does not go back to an older one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jetstream_protocol.batch import Batch, EncodedBatch, decode_header
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_json import decoded
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    RegisterNode,
    SetCluster,
    SetSchema,
)
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from tests.simulation.checker import Checker
from tests.simulation.cluster import BEGIN_US, Cluster
from tests.simulation.process import Process
from tests.simulation.producers import Repeating
from tests.simulation.watched import WatchedStream
from tests.simulation.world import Violation

VERSIONS = ("id bigint, n int", "id bigint, n bigint", "id bigint, n bigint, m int", "")
"""One after the other, and then the first one again. "": no schema."""
_FIELDS = {text: parse(text).fields if text else () for text in VERSIONS}
_SAYS: Sequence[dict[str, object]] = ({"n": 1}, {"n": 1}, {"n": 2**40}, {"m": "x"}, {"n": "x"})


def value_of(number: int) -> bytes:
    """What that publish says."""
    return json.dumps({"id": number, **_SAYS[number % len(_SAYS)]}).encode()


def fits(value: bytes | None, text: str) -> bool:
    return not text or decoded(value, _FIELDS[text])[1] is None


class TypedChecker(Checker):
    """Told of the versions, too."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.world, cluster.profile.nodes)
        self.texts = [""]
        """All that the stream has had, in order."""
        self._since: dict[int, int] = {}
        """By leader epoch: which of them was the last one when it began."""

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        super().stream_changed(before, after)
        if after.schema != self.texts[-1]:
            self.texts.append(after.schema)
        self._since.setdefault(after.leader_epoch, len(self.texts) - 1)

    def leader_appended(
        self, process: Process, replica: Replica, base_offset: int, batch: EncodedBatch
    ) -> None:
        super().leader_appended(process, replica, base_offset, batch)
        values = Batch.decode(batch.to_bytes()).values()
        epoch = decode_header(batch.header).leader_epoch
        allowed = self.texts[self._since[epoch] :]
        known = replica.stream.schema
        if known not in allowed or not all(fits(value, known) for value in values):
            raise Violation(
                f"{values} at {base_offset} of epoch {epoch} by the schema {known!r}; since it "
                f"leads there were {allowed}"
            )

    def _number_of(self, value: bytes | None) -> int:
        return int(json.loads(value or b"")["id"])


class _Nobody(Repeating):
    """Their messages say nothing but a number."""

    def begin(self) -> None:
        pass


class TypedStream(WatchedStream):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "orders", 0, TypedChecker(cluster))
        self.repeating = _Nobody(self, 0)

    def values(self, ids: list[int]) -> list[bytes]:
        return [value_of(number) for number in ids]


class TypedCluster(Cluster):
    """See the module."""

    def make_streams(self) -> list[WatchedStream]:
        return [TypedStream(self)]

    def registration_of(self, node_id: int, **fields: Any) -> RegisterNode:
        return super().registration_of(node_id, feature_level_max=FEATURE_LEVEL_MAX, **fields)

    def create_streams(self) -> None:
        self.metadata.apply(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        super().create_streams()

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "on_mismatch": "refuse"}

    def run(self) -> None:
        self.world.at(BEGIN_US, None, self._set_schema)
        super().run()

    def _set_schema(self) -> None:
        if self.faults.healing:
            return
        world, stream = self.world, self.focus.stream
        text = VERSIONS[stream.schema_version % len(VERSIONS)]
        world.count("schema set")
        self.metadata.apply(
            SetSchema(stream_id=stream.id, schema=text, schema_version=stream.schema_version)
        )
        world.later(world.between(100_000, 1_500_000), None, self._set_schema)
