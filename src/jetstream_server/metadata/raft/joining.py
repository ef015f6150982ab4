"""Asks a running node which group it belongs to, and who votes there.

A node dials a Raft port and authenticates as for a link (handshake.py), with the purpose ASK. The
answer is one frame: JSON with the voters, the cluster id and the group's recoveries. It becomes the
`group.json` of a new node that knows only an address: from then on it follows like any other that
does not vote. A node that finds no leader among the voters that it knows learns from it where the
voters are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import structlog

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    UnauthenticatedError,
    UnavailableError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.group_file import Group
from jetstream_server.metadata.raft.handshake import Identity, Purpose, Status
from jetstream_server.metadata.raft.transport import HANDSHAKE_SECONDS_MAX, dial
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.net.certificates import Certificates

logger = structlog.get_logger(__name__)

JOIN_SECONDS = 60.0
"""How long a new node asks. It ends then, and may be started again."""
PAUSE_SECONDS = 1.0
NOT_LISTENING = (
    "does not listen: is the node running? One that was begun alone listens for others once "
    "`voters` in its file has its own id, and it was restarted"
)


def encode_group(voters: Voters, cluster_id: str, recoveries: Sequence[str]) -> bytes:
    values = bounded_json.loads(voters.encode())
    return json.dumps({**values, "cluster_id": cluster_id, "tokens": list(recoveries)}).encode()


def decode_group(data: bytes, node_id: NodeId) -> Group:
    """The group of the answer, for that node's folder. Raises InvalidRequestError."""
    try:
        voters, values = Voters.decode(data), bounded_json.loads(data)
        tokens = tuple(map(str, values["tokens"]))
        cluster_id = str(values["cluster_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"does not say what its group is: {error}") from error
    if not cluster_id:
        raise UnavailableError("its group has not begun yet")
    return Group(node_id, voters.addresses, cluster_id, tokens, is_named=True)


async def ask(
    addresses: Sequence[str],
    identity: Identity,
    certificates: Certificates | None,
    seconds: float = JOIN_SECONDS,
) -> Group:
    """Ask one after the other until one answers.

    Raises PreconditionFailedError if this node's id is in use there, UnauthenticatedError if it may
    not join, and UnavailableError after `seconds`.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    reasons_of: dict[str, str] = {}
    while True:
        for address in addresses:
            try:
                return await ask_one(address, identity, certificates)
            except (PreconditionFailedError, UnauthenticatedError) as error:
                raise type(error)(f"{address} {error.message}") from error
            except UnavailableError as error:
                if reasons_of.get(address) != error.message:
                    reasons_of[address] = error.message
                    logger.warning("cannot_join_yet", address=address, reason=error.message)
        if asyncio.get_running_loop().time() > deadline:
            reasons = "; ".join(f"{address} {reason}" for address, reason in reasons_of.items())
            raise UnavailableError(f"cannot join a cluster: {reasons}")
        await asyncio.sleep(PAUSE_SECONDS)


async def ask_one(address: str, identity: Identity, certificates: Certificates | None) -> Group:
    """Ask once. Raises PreconditionFailedError if this node's id is in use there,
    UnauthenticatedError if it may not ask, and UnavailableError if there is no answer."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            return await _ask(address, identity, certificates)
    except (PreconditionFailedError, UnauthenticatedError):
        raise
    except JetstreamError as error:
        raise UnavailableError(error.message) from error
    except ConnectionRefusedError as error:
        raise UnavailableError(NOT_LISTENING) from error
    except (OSError, EOFError) as error:
        raise UnavailableError(str(error) or type(error).__name__) from error


async def _ask(address: str, identity: Identity, certificates: Certificates | None) -> Group:
    connection = await dial(
        address,
        Purpose.ASK,
        identity,
        target=identity.node_id,
        cluster=handshake.UNKNOWN_CLUSTER,
        certificates=certificates,
    )
    try:
        answer = connection.answer
        if certificates is not None:
            shown = connection.stream.peer_identity
            if shown is None or shown.node_id != answer.sender:
                raise UnauthenticatedError(f"shows no certificate of node {answer.sender}")
        if answer.status == Status.ID_IN_USE:
            raise PreconditionFailedError(
                f"is linked to another running server with this node's id, {identity.node_id}"
            )
        if answer.status != Status.WELCOME:
            raise PreconditionFailedError(handshake.REFUSALS[answer.status])
        head = await connection.stream.read_exactly(handshake.FRAME_HEAD_BYTES)
        payload = await connection.stream.read_exactly(handshake.frame_length(head))
        connection.codecs[1].check(head[-handshake.TAG_BYTES :], payload)
        return decode_group(payload, identity.node_id)
    finally:
        connection.stream.close()
