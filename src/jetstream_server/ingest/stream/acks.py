"""The content of acknowledgements. ingest/nats/replies.py decides who may get one.

An ack is a NATS message to the publisher's reply subject. Its payload is the JSON that the NATS
client libraries' `js.publish()` already understands (docs/protocol.md, "Acks"):

    {"stream":"orders","seq":43}                                        seq = offset + 1
    {"stream":"orders","seq":1043,"count":1000,"duplicate":true,"correlation":"c-17"}
    {"error":{"code":503,"err_code":20012,"description":"…"},"stream":"orders","seq":0}

The last three fields occur only where they apply: `count` for a batch, the others on request. All
answers end with the mark of the cluster (jetstream_protocol/ack_cluster.py):
`,"cluster":"3f9a12c07be4"`.

Invariant.
* Whole batches are formatted at once: no Python statement runs per ordinary ack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jetstream_protocol.errors import CODES, JetstreamError
from jetstream_server.ingest.nats.replies import Replies, literal


class Direct(NamedTuple):
    """Where the answer to a batch goes whose producer has sent it to this node itself. One of the
    two is called, once.

    stored: with the batch's base offset, its count of records, and whether the stream had it
    already.
    """

    stored: Callable[[int, int, bool], None]
    refuse: Callable[[JetstreamError], None]


class Answer(NamedTuple):
    """An acknowledgement with more than stream and sequence.

    reply: a NATS subject, or the way to a producer on its own connection. end_offset: after the
    last record. record_count: of a batch; 0: a single record. correlation: b"" for none.
    """

    reply: bytes | Direct
    end_offset: int
    record_count: int = 0
    duplicate: bool = False
    correlation: bytes = b""


class AckFormat:
    """Formats the acks of one stream."""

    __slots__ = ("_after", "_before", "_name")

    def __init__(self, stream_name: str, cluster: str = "") -> None:
        """cluster: its mark; "": the answers have none."""
        self._name = json.dumps(stream_name)
        self._before = b'{"stream":%b,"seq":' % self._name.encode()
        self._after = b',"cluster":"%b"}' % cluster.encode() if cluster else b"}"

    def acks(self, replies: Replies, base_offset: int) -> bytes:
        """One PUB for each reply, for the record at `base_offset` + its position (ascending)."""
        return replies.acks(self._before, self._after, base_offset)

    def answer(self, answer: Answer) -> bytes:
        """One PUB with an ack that has more fields, to a NATS subject."""
        assert isinstance(answer.reply, bytes)
        payload = b"".join((
            b"%b%d" % (self._before, answer.end_offset),
            b',"count":%d' % answer.record_count if answer.record_count else b"",
            b',"duplicate":true' if answer.duplicate else b"",
            _correlation_field(answer.correlation),
            self._after,
        ))  # fmt: skip
        return b"PUB %b %d\r\n%b\r\n" % (answer.reply, len(payload), payload)

    def nacks(
        self, replies: Sequence[bytes], error: JetstreamError, correlation: bytes = b""
    ) -> bytes:
        """One PUB for each reply, all with the reason why the record was not stored."""
        payload = self.nack_payload(error, correlation)
        nack = b"PUB %%b %d\r\n" % len(payload) + literal(payload) + b"\r\n"
        return nack * len(replies) % tuple(replies)

    def nack_payload(self, error: JetstreamError, correlation: bytes = b"") -> bytes:
        spelling = CODES[type(error)]
        # Exactly these three fields: nats-py passes them on as keyword arguments.
        fields = {
            "code": spelling.nats_code,
            "err_code": spelling.nats_err_code,
            "description": error.message,
        }
        text = json.dumps(fields, separators=(",", ":"))
        head = f'{{"error":{text},"stream":{self._name},"seq":0'.encode()
        return head + _correlation_field(correlation) + self._after


def _correlation_field(correlation: bytes) -> bytes:
    """The field with the message's correlation id; b"" for none."""
    return b',"correlation":%b' % json.dumps(correlation.decode()).encode() if correlation else b""
