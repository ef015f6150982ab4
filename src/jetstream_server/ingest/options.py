"""From the configuration's `nats` section to how a link is opened."""

from __future__ import annotations

import ssl
from importlib.metadata import version

from jetstream_server.config import ConfigurationError, NatsConfig
from jetstream_server.ingest.auth import Credentials
from jetstream_server.ingest.handshake import LinkOptions


def link_options(nats: NatsConfig, node_id: int) -> LinkOptions:
    """Raises ConfigurationError for TLS files that cannot be used."""
    context = None
    if nats.tls is not None:
        try:
            context = ssl.create_default_context(cafile=nats.tls.ca_file)
            if nats.tls.certificate_file is not None:
                context.load_cert_chain(nats.tls.certificate_file, nats.tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"nats.tls: {error}") from error
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
        tls=context,
        tls_handshake_first=nats.tls is not None and nats.tls.handshake_first,
    )
