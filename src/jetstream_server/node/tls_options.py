"""From the configuration's `tls` section to certificates; they are read again when files change."""

from __future__ import annotations

import asyncio

import structlog

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.node.config import Config, NodeConfig

CHECK_SECONDS = 2.0
"""How often files are looked at; a change is in use after twice that."""

logger = structlog.get_logger("jetstream.server")


def certificates_of(config: Config, node: NodeConfig) -> Certificates | None:
    """None: every port is plain. Raises PreconditionFailedError for files that cannot be used."""
    if config.tls is None:
        return None
    return Certificates(
        TlsFiles(
            certificate=config.tls.certificate_file,
            key=config.tls.key_file,
            ca=config.tls.ca_file,
            requires_clients=config.tls.client_auth == "required",
            node_id=NodeId(node.id) if len(config.nodes) > 1 else None,
        )
    )


def reload(certificates: Certificates) -> None:
    """Read the files again. What cannot be used is logged, and the old ones stay."""
    try:
        if certificates.reload():
            logger.info("certificates_reloaded")
    except PreconditionFailedError as error:
        logger.error("certificates_not_reloaded", reason=error.message)


async def watch(certificates: Certificates) -> None:
    """Reload when files have changed and then stayed the same for CHECK_SECONDS: certificate and
    key are replaced one after the other."""
    before = certificates.signature()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = certificates.signature()
        if now == before and now != certificates.seen:
            reload(certificates)
        before = now
