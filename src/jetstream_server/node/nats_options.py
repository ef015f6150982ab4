"""Makes the options of NATS links from the configuration's `nats` section."""

from __future__ import annotations

import ssl
from importlib.metadata import version

import structlog

from jetstream_server.ingest.nats.auth import Credentials
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.node.config import ConfigurationError, NatsConfig, NatsTlsConfig

logger = structlog.get_logger("jetstream.ingest")


class NatsTls:
    """TLS as `nats.tls` says, for each connection: files are read again. When they cannot be used
    any more, their former content stays in use."""

    def __init__(self, config: NatsTlsConfig) -> None:
        """Raises ConfigurationError for files that cannot be used."""
        self._config = config
        self._context = self._read()

    def __call__(self) -> ssl.SSLContext:
        try:
            self._context = self._read()
        except ConfigurationError as error:
            logger.error("certificates_not_reloaded", reason=str(error))
        return self._context

    def _read(self) -> ssl.SSLContext:
        config = self._config
        try:
            context = ssl.create_default_context(cafile=config.ca_file)
            if config.certificate_file is not None:
                context.load_cert_chain(config.certificate_file, config.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"nats.tls: {error}") from error
        return context


def link_options(nats: NatsConfig, node_id: int) -> LinkOptions:
    """The options. Raises ConfigurationError for TLS files that cannot be used."""
    return LinkOptions(
        name=f"jetstream-node-{node_id}",
        version=version("jetstream-log"),
        credentials=Credentials(
            user=nats.user,
            password=nats.password,
            token=nats.token,
            nkey_seed_file=nats.nkey_seed_file,
            credentials_file=nats.credentials_file,
        ),
        tls=None if nats.tls is None else NatsTls(nats.tls),
        tls_handshake_first=nats.tls is not None and nats.tls.handshake_first,
    )
