"""Whatever JSON a peer, a client or a file sends: each part that reads it refuses it with the error
that its caller expects."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_client.cli.context_file import ContextFile
from jetstream_client.migration.manifest import Manifest
from jetstream_client.publishing.ack import parse_ack
from jetstream_protocol.batch import crc32c
from jetstream_protocol.errors import (
    CorruptBatchError,
    InternalError,
    InvalidRequestError,
    StorageError,
)
from jetstream_protocol.logfiles import checkpoint_file, identity_file
from jetstream_protocol.types import NodeId
from jetstream_server.ingest.nats.parser import NatsProtocolError, control_event
from jetstream_server.jetstream_api.errors import ApiError
from jetstream_server.jetstream_api.requests import body_of
from jetstream_server.metadata.raft.joining import decode_group
from jetstream_server.metadata.raft.standing import VoterStatus
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.state.command_json import decode_command
from jetstream_server.metadata.state.state_image import StateImage

DEEP = b"[" * 2_000 + b"]" * 2_000
HUGE = b'{"voters":{"1":"a:1"},"recoveries":1e999,"tokens":[],"cluster_id":"c","seq":1e999}'


@pytest.mark.parametrize("text", [DEEP, b'{"voters":' + DEEP + b"}", HUGE])
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda text: decode_group(text, NodeId(1)), InvalidRequestError),
        (Voters.decode, ValueError),
        (lambda text: VoterStatus.decode(text, 0), (ValueError, KeyError, TypeError)),
        (lambda text: identity_file.decode(text, ["voters"]), ValueError),
        (lambda text: StateImage.decode(zlib.compress(text)), StorageError),
        (body_of, ApiError),
        (lambda text: Manifest.from_json(text, "here"), InvalidRequestError),
    ],
)  # fmt: skip
def test_it_is_refused(
    read: Callable[[bytes], object], error: type[Exception], text: bytes
) -> None:
    with pytest.raises(error):
        read(text)


def test_a_command_of_the_metadata_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        decode_command(DEEP.decode())


@pytest.mark.parametrize("text", [DEEP, HUGE])
def test_a_file_with_it_is_called_damaged(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "contexts.json"
    path.write_bytes(text)
    with pytest.raises(InvalidRequestError, match="is damaged"):
        ContextFile(path)
    body = text + b"\n"
    with pytest.raises(CorruptBatchError):
        checkpoint_file.decode(b"JSLC 1 %08x\n%s" % (crc32c(body), body), "kind", "owner")


@pytest.mark.parametrize("text", [DEEP, HUGE])
def test_it_is_no_acknowledgement(text: bytes) -> None:
    found = parse_ack(text)
    assert isinstance(found, tuple)
    assert isinstance(found[1], InternalError)


def test_it_is_no_greeting_of_nats() -> None:
    with pytest.raises(NatsProtocolError):
        control_event(b"INFO " + DEEP)
