"""`jetstream-server token --bootstrap`: the first administrator, made on a node's own machine.

The caller has the cluster's credential, from the configuration, and proves that to the node
(security/node_proof.py). The node makes a token and the rules that allow its principal everything.
It refuses once there is an administrator. While its security is off, it believes every caller.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from jetstream_protocol.errors import (
    JetstreamError,
    UnauthenticatedError,
    UnavailableError,
    from_trailers,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.services import Stub
from jetstream_server.node.config import Config, NodeConfig
from jetstream_server.security import node_proof
from jetstream_server.security.acl import Operation

METHOD = "/jetstream.v1.Security/Bootstrap"
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 0.2


class Refused(Exception):
    """The bootstrap was refused. The message is one line that says why."""


def bootstrap(config: Config, node: NodeConfig, principal: str, lifetime_us: int) -> str:
    """Make the administrator. Returns the text of the new token. Raises Refused."""
    if not config.credential:
        raise Refused("credential: not set here; the node recognises its own machine by it")
    request = pb.BootstrapRequest(principal=principal, lifetime_us=lifetime_us)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with _channel(config, node.grpc.advertise) as channel:
        call = Stub("Security", channel).Bootstrap
        while True:
            try:
                answer: pb.CreateTokenResponse = call(
                    request, timeout=TIMEOUT_SECONDS, metadata=_proof(config, node)
                )
            except grpc.RpcError as error:
                answered = _answer_error(error, node)
                if not answered.retriable or time.monotonic() > deadline:
                    raise Refused(answered.message) from error
                time.sleep(RETRY_SECONDS)
            else:
                return answer.text


def security_is_off(config: Config, node: NodeConfig, token: str) -> bool:
    """Whether the node ignores the administrator's token. False if it does not say."""
    with _channel(config, node.grpc.advertise) as channel:
        try:
            answer: pb.TestAclResponse = Stub("Security", channel).TestAcl(
                pb.TestAclRequest(operation=Operation.SECURITY_ALTER),
                timeout=TIMEOUT_SECONDS,
                metadata=(("authorization", f"Bearer {token}"),),
            )
        except grpc.RpcError:
            return False
    return answer.security_off


def _proof(config: Config, node: NodeConfig) -> tuple[tuple[str, str]]:
    """The proof for one call, as its metadata."""
    claim = node_proof.Claim(node.id, node_proof.BOOTSTRAP, time.time_ns() // 1000)
    value = node_proof.proof(
        config.credential.encode(),
        METHOD,
        claim,
        target=node.id,
        incarnation=node_proof.BOOTSTRAP,
    )
    return (("authorization", value),)


def _channel(config: Config, address: str) -> grpc.Channel:
    """A channel. With TLS it shows the node's own certificate: the node is on this machine."""
    if config.tls is None:
        return grpc.insecure_channel(address)
    try:
        ca = None if config.tls.ca_file is None else config.tls.ca_file.read_bytes()
        key, certificate = (
            config.tls.key_file.read_bytes(),
            config.tls.certificate_file.read_bytes(),
        )
    except OSError as error:
        raise Refused(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))


def _answer_error(error: Any, node: NodeConfig) -> JetstreamError:
    address = node.grpc.advertise
    answered = from_trailers(error.trailing_metadata())
    if answered is None:
        return UnavailableError(f"node at {address} does not answer: is it running?")
    if answered.message == node_proof.NOT_VALID:
        return UnauthenticatedError(
            f"the credential is not the one of the server at {address}, or that is not node "
            f"{node.id}"
        )
    return answered
