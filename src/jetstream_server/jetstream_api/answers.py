"""What the JetStream API answers, as JSON, and as headers of single messages. Pure.

A sequence is an offset plus one. Times are RFC 3339, durations nanoseconds, "unlimited" is -1. Only
keys of JetStream's own schemas are sent (docs/jetstream_api.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jetstream_protocol.settings import labels_of
from jetstream_protocol.types import NO_NODE, NodeId, WallUs
from jetstream_server.jetstream_api.requests import api_name
from jetstream_server.metadata.state.streams import StreamMetadata

NO_TIME = "0001-01-01T00:00:00Z"
UNLIMITED = -1
API_LEVEL = 1
"""Of the JetStream API that is served: that of nats-server 2.11. What is not served of it is
refused."""
_REPLICAS_MAX = 5  # of JetStream's schema
MESSAGE_BYTES_MAX = 2**31 - 1
"""`max_msg_size` has 32 bits: clients fail to read a stream's description with more."""
_NS_PER_US = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ADDED = ("nats-stream", "nats-subject", "nats-sequence", "nats-time-stamp", "nats-num-pending",
          "nats-last-sequence", "nats-upto-sequence")  # fmt: skip
"""Headers of single messages. What a publisher has sent under these names is left out: clients
would take it for ours."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the leader knows. Offsets; high_watermark is exclusive. first_us, last_us: when the
    first and the last record were appended; None: there is none, or it is not known. subjects: how
    many have a record; None: there is no index of them."""

    log_start_offset: int
    high_watermark: int
    size_bytes: int
    first_us: WallUs | None
    last_us: WallUs | None
    subjects: int | None = None
    consumers: int = 0

    def messages(self, stream: StreamMetadata) -> int:
        """Of a stream that keeps the last record of each subject, one a subject. Of one that is
        compacted by other keys an upper bound."""
        if stream.config.keeps_last_of_subjects and self.subjects is not None:
            return self.subjects
        return self.high_watermark - self.log_start_offset


def time_text(us: int | None, ns: int = 0) -> str:
    """A time of record, as RFC 3339. The zero time of Go for None, and for what no calendar has.
    ns: nanoseconds beyond the microseconds."""
    try:
        at = _EPOCH + timedelta(microseconds=us or 0)
    except OverflowError:
        return NO_TIME
    # Not strftime: its %Y has no leading zeros.
    beyond = f"{ns:03}" if ns else ""
    text = at.replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text}{beyond}Z" if us else NO_TIME


def account_info(domain: str, streams: int, requests: int, refused: int) -> dict[str, Any]:
    """requests, refused: since this node started."""
    limits = {
        "max_memory": UNLIMITED,
        "max_storage": UNLIMITED,
        "max_streams": UNLIMITED,
        "max_consumers": UNLIMITED,
        "max_ack_pending": UNLIMITED,
        "memory_max_stream_bytes": UNLIMITED,
        "storage_max_stream_bytes": UNLIMITED,
        "max_bytes_required": False,
    }
    return {
        "memory": 0,
        "storage": 0,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "streams": streams,
        "consumers": 0,
        "limits": limits,
        "domain": domain,
        "api": {"level": API_LEVEL, "total": requests, "errors": refused},
    }


def stream_info(
    stream: StreamMetadata,
    state: StreamState,
    *,
    domain: str,
    cluster: str,
    fenced: Iterable[NodeId],
    now_us: WallUs,
) -> dict[str, Any]:
    """fenced: the nodes that are away."""
    return {
        "config": stream_config(stream),
        "created": time_text(stream.created_at_us),
        "state": _state(stream, state),
        "domain": domain,
        "cluster": _cluster(stream, cluster, set(fenced)),
        "ts": time_text(now_us),
    }


def stream_config(stream: StreamMetadata) -> dict[str, Any]:
    """The settings of a stream in JetStream's words."""
    config = stream.config
    is_bucket = config.keeps_last_of_subjects
    return {
        "name": api_name(stream.name),
        **({"description": config.description} if config.description else {}),
        "subjects": [stream.subject],
        "retention": "limits",
        "max_consumers": UNLIMITED,
        "max_msgs": config.max_messages or UNLIMITED,
        "max_bytes": config.max_bytes or UNLIMITED,
        "max_age": config.max_age_us * _NS_PER_US,
        "max_msgs_per_subject": 1 if is_bucket else UNLIMITED,
        "max_msg_size": min(config.max_message_bytes, MESSAGE_BYTES_MAX) or UNLIMITED,
        "discard": "new" if is_bucket and not config.has_limits else "old",
        "storage": "file",
        "num_replicas": min(len(stream.replicas) or config.replicas, _REPLICAS_MAX),
        # There it is never above the age, and clients send back what they are shown.
        "duplicate_window": min(
            config.duplicate_window_us, config.max_age_us or config.duplicate_window_us
        )
        * _NS_PER_US,
        "compression": "none",
        "sealed": False,
        "deny_delete": True,
        "deny_purge": False,
        "allow_rollup_hdrs": is_bucket,
        "allow_direct": True,
        "allow_msg_ttl": False,
        "mirror_direct": False,
        "consumer_limits": {},
        "metadata": {
            **labels_of(config.labels),
            "jetstream.id": str(stream.id),
            "jetstream.name": stream.name,
        },
    }


def _state(stream: StreamMetadata, state: StreamState) -> dict[str, Any]:
    messages = state.messages(stream)
    is_empty = messages == 0
    was_used = state.high_watermark > 0
    counted = {"num_subjects": state.subjects} if state.subjects else {}
    return {
        "messages": messages,
        "bytes": state.size_bytes if not is_empty else 0,
        "first_seq": state.log_start_offset + 1 if was_used else 0,
        "first_ts": time_text(None if is_empty else state.first_us),
        "last_seq": state.high_watermark,
        "last_ts": time_text(state.last_us if was_used else None),
        "consumer_count": state.consumers,
        **counted,
    }


def _cluster(stream: StreamMetadata, cluster: str, fenced: set[NodeId]) -> dict[str, Any]:
    followers = [each for each in stream.copies if each != stream.leader]
    replicas = []
    for each in followers:
        peer = {"name": _node_name(each), "current": each in stream.isr, "active": 0}
        replicas.append(peer | ({"offline": True} if each in fenced else {}))
    found: dict[str, Any] = {"name": cluster, "replicas": replicas}
    if stream.leader != NO_NODE:
        found["leader"] = _node_name(stream.leader)
    return found


def _node_name(node_id: NodeId) -> str:
    return f"node-{node_id}"


# Single messages.


def direct_headers(block: bytes, added: Mapping[str, object]) -> bytes:
    """The header block of a message: what its publisher sent, then ours."""
    lines = [each for each in block.split(b"\r\n")[1:] if each and not _is_added(each)]
    ours = [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in added.items()]
    return b"\r\n".join([b"NATS/1.0", *lines, *ours, b"", b""])


def _is_added(line: bytes) -> bool:
    name = line.partition(b":")[0].strip().lower()
    return name.decode("latin-1") in _ADDED


def status_headers(status: str, added: Mapping[str, object] | None = None) -> bytes:
    """The header block of an answer without a message. status: code and text."""
    lines = [f"NATS/1.0 {status}", *(f"{name}: {value}" for name, value in (added or {}).items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")
