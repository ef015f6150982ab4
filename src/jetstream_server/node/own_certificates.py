"""This node's certificates: the files that the configuration names, loaded at the start and again
when they change."""

from __future__ import annotations

import structlog

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.node.config import Config, NodeConfig

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
            node_id=None if config.is_alone else NodeId(node.id),
        )
    )


class CertificateReload:
    """The certificates as a source of `Reloading`."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self.signature = certificates.signature

    @property
    def seen(self) -> object:
        return self._certificates.seen

    def reload(self) -> None:
        """Read the files again. If they cannot be used, that is logged and the old ones stay."""
        try:
            if self._certificates.reload():
                logger.info("certificates_reloaded")
        except PreconditionFailedError as error:
            logger.error("certificates_not_reloaded", reason=error.message)
