"""Makes the options of NATS links from the configuration's `nats` section."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from jetstream_protocol.version import VERSION
from jetstream_server.ingest.nats.auth import Credentials
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.ingest.nats.server_pool import parse_url
from jetstream_server.jetstream_api.leaf.handshake import LEAF_PORT_DEFAULT, leaf_dialect
from jetstream_server.net.certificates import no_password
from jetstream_server.node.config import (
    ConfigurationError,
    LeafConfig,
    NatsConfig,
    NatsTlsConfig,
)

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
                context.load_cert_chain(
                    config.certificate_file, config.key_file, password=no_password
                )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(f"nats.tls: {error}") from error
        return context


def link_options(nats: NatsConfig, node_id: int) -> LinkOptions:
    """The options. Raises ConfigurationError for TLS files that cannot be used."""
    return _options(f"jetstream-node-{node_id}", nats, nats.tls)


def leaf_options(nats: NatsConfig, node_id: int, cluster: str) -> LinkOptions:
    """The options of the leaf link. Raises ConfigurationError for TLS files that cannot be used."""
    login = nats.leaf if nats.leaf.has_login else nats
    options = _options(f"node-{node_id}", login, nats.leaf.tls or nats.tls)
    return replace(options, dialect=leaf_dialect(nats.api_domain, cluster))


def leaf_servers(nats: NatsConfig) -> list[str]:
    """The URLs of the leaf link."""
    return list(nats.leaf.servers) or [_on_leaf_port(url) for url in nats.servers]


def open_leaf_port(folder: Path, nats: NatsConfig) -> list[str]:
    """Have an embedded nats-server listen for the leaf link, on loopback. Returns arguments of its
    command line. folder: for its configuration."""
    if not nats.api_domain:
        return []
    address = parse_url(leaf_servers(nats)[0], LEAF_PORT_DEFAULT)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "leaf.conf"
    file.write_text(f'leafnodes {{ listen: "127.0.0.1:{address.port}" }}\n', encoding="utf-8")
    return ["--config", str(file)]


def _on_leaf_port(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    user, at, place = parts.netloc.rpartition("@")
    host = place[: place.index("]") + 1] if place.startswith("[") else place.partition(":")[0]
    return parts._replace(netloc=f"{user}{at}{host}:{LEAF_PORT_DEFAULT}").geturl()


def _options(name: str, login: NatsConfig | LeafConfig, tls: NatsTlsConfig | None) -> LinkOptions:
    return LinkOptions(
        name=name,
        version=VERSION,
        credentials=Credentials(
            user=login.user,
            password=login.password,
            token=login.token,
            nkey_seed_file=login.nkey_seed_file,
            credentials_file=login.credentials_file,
        ),
        tls=None if tls is None else NatsTls(tls),
        tls_handshake_first=tls is not None and tls.handshake_first,
    )
