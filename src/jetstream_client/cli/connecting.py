"""Which cluster a command talks to, and how: options, environment, contexts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from jetstream_client.cli.context_file import CONTEXT_VARIABLE, ContextFile
from jetstream_client.values.config import SERVERS_VARIABLE, ClientConfig, NatsOptions
from jetstream_client.values.tls import TlsConfig


@dataclass(slots=True)
class Common:
    """The options that stand in front of the command."""

    server: str | None = None
    json: bool = False
    timeout: float | None = None
    tls: TlsConfig | None = None
    context: str | None = None


def tls_of(tls: bool, ca: str | None, cert: str | None, key: str | None) -> TlsConfig | None:
    """What the options for TLS say; None: nothing."""
    return TlsConfig(ca, cert, key) if tls or ca or cert or key else None


def reached(
    server: str | None,
    before: Common,
    timeout: float,
    nats: str | None = None,
    nats_options: NatsOptions | None = None,
) -> ClientConfig:
    """How to reach the cluster: by the options, else the environment, else a context.

    A context that the user did not name gives its certificates, its credentials and its token to
    its own servers only. nats_options: those of the command; the files for TLS go together.
    """
    given = NatsOptions() if nats_options is None else nats_options
    name = before.context or os.environ.get(CONTEXT_VARIABLE)
    found = None
    if name:
        found = ContextFile().get(name)
    elif not server and not os.environ.get(SERVERS_VARIABLE):
        file = ContextFile()
        found = file.contexts.get(file.current)
    if found is None:
        login = _either(given, NatsOptions.of_environment())
        return ClientConfig.of(server, nats, login, timeout=timeout, tls=before.tls)
    own = found.nats_options if name or not nats else NatsOptions()
    return ClientConfig.of(
        server or found.servers,
        nats or found.nats or None,
        _either(_either(given, own), NatsOptions.of_environment()),
        timeout=timeout,
        token=found.token or None,
        tls=before.tls or found.tls_config,
    )


def _either(first: NatsOptions, other: NatsOptions) -> NatsOptions:
    """What `first` says, else `other`: about TLS, and about credentials."""
    credentials = first.credentials or other.credentials
    return replace(first if first.wants_tls else other, credentials=credentials)
