"""Makes certificates from the configuration's `tls` section. Reloads them when files change."""

from __future__ import annotations

import asyncio

import structlog

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.node.config import Config, NodeConfig

CHECK_SECONDS = 2.0
"""Seconds between checks of the files. A change is in use after twice that."""

logger = structlog.get_logger("jetstream.server")


def certificates_of(config: Config, node: NodeConfig) -> Certificates | None:
    """The certificates; None: every port is plain. Raises PreconditionFailedError for bad files."""
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
    """Read the files again. If they cannot be used, that is logged and the old ones stay."""
    try:
        if certificates.reload():
            logger.info("certificates_reloaded")
    except PreconditionFailedError as error:
        logger.error("certificates_not_reloaded", reason=error.message)


async def watch(certificates: Certificates) -> None:
    """Reload once files have changed and then stayed the same for CHECK_SECONDS: certificate and
    key are replaced one after the other."""
    before = certificates.signature()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = certificates.signature()
        if now == before and now != certificates.seen:
            reload(certificates)
        before = now
