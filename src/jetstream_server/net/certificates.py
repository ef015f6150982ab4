"""A node's own certificate and the authorities it trusts, and the TLS contexts made from them.

The same certificate is shown on every port and to other nodes. Each way to use it has its own
context: `data`, `http` and `raft` for the ports, `dial` for connections to other nodes.

Invariants.
* Files in use were checked: the key belongs to the certificate. In a cluster, the authority has
  signed the certificate, it is valid now, it serves both ends of a connection, and it names this
  node.
* `reload` changes everything or nothing. New connections use the new files, others are unaffected.
* TLS 1.2 is the minimum, without renegotiation and without session tickets: every connection shows
  its certificates.

Attributes may be read on any thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.net.tls import node_uri, of_certificate

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2, with forward secrecy and authenticated encryption. TLS 1.3 has only good
ones."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """certificate: with the chain up to the authority. ca: the authority that signs the
    certificates of clients and nodes. requires_clients: clients must show a certificate. node_id:
    of this node, in a cluster, where other nodes must show certificates as well; None: the node is
    alone."""

    certificate: Path
    key: Path
    ca: Path | None
    requires_clients: bool
    node_id: NodeId | None

    @property
    def paths(self) -> Sequence[Path]:
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files, for gRPC. ca: b"" without one."""

    certificate: bytes
    key: bytes
    ca: bytes


@dataclass(frozen=True, slots=True)
class _Loaded:
    pem: Pem
    data: ssl.SSLContext
    http: ssl.SSLContext
    raft: ssl.SSLContext
    dial: ssl.SSLContext


class Certificates:
    """See the module. generation: grows with every reload that changed something. seen: the files'
    signature at the last attempt to load them."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises PreconditionFailedError when the files cannot be used."""
        self.files = files
        self.generation = 0
        self.seen = self.signature()
        self._loaded = _load(files)

    @property
    def requires_clients(self) -> bool:
        return self.files.requires_clients

    @property
    def pem(self) -> Pem:
        return self._loaded.pem

    @property
    def data(self) -> ssl.SSLContext:
        """For the data plane. In a cluster it asks for certificates, because nodes show theirs."""
        return self._loaded.data

    @property
    def http(self) -> ssl.SSLContext:
        return self._loaded.http

    @property
    def raft(self) -> ssl.SSLContext:
        """For the metadata group's port: a peer without a certificate is not a node."""
        return self._loaded.raft

    @property
    def dial(self) -> ssl.SSLContext:
        """For connections to other nodes. The host name is not checked: the caller checks that the
        certificate is that node's."""
        return self._loaded.dial

    def reload(self) -> bool:
        """Read the files again, and return whether they have changed. Raises
        PreconditionFailedError when they cannot be used: the files loaded before stay in use."""
        self.seen = self.signature()
        loaded = _load(self.files)
        if loaded.pem == self._loaded.pem:
            return False
        self._loaded = loaded
        self.generation += 1
        return True

    def signature(self) -> list[tuple[int, int, int] | None]:
        """The signature of each file."""
        return [signature(path) for path in self.files.paths]


def signature(path: Path) -> tuple[int, int, int] | None:
    """Time, size and inode of a file, by which changes are noticed; None: unreadable."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _load(files: TlsFiles) -> _Loaded:
    try:
        pem = Pem(
            files.certificate.read_bytes(),
            files.key.read_bytes(),
            files.ca.read_bytes() if files.ca else b"",
        )
    except OSError as error:
        raise PreconditionFailedError(
            f"tls: cannot read {error.filename}: {error.strerror}"
        ) from error
    needs = ssl.CERT_REQUIRED if files.requires_clients else ssl.CERT_NONE
    in_cluster = files.node_id is not None
    asks = ssl.CERT_OPTIONAL if in_cluster and not files.requires_clients else needs
    loaded = _Loaded(
        pem=pem,
        data=_context(files, pem, ssl.PROTOCOL_TLS_SERVER, asks),
        http=_context(files, pem, ssl.PROTOCOL_TLS_SERVER, needs),
        raft=_context(
            files, pem, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED if in_cluster else needs
        ),
        dial=_context(files, pem, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED),
    )
    if files.node_id is not None:
        _check_own(loaded, files.node_id, files.certificate)
    return loaded


def _context(files: TlsFiles, pem: Pem, protocol: int, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    context.check_hostname = False
    context.verify_mode = verify
    try:
        context.load_cert_chain(files.certificate, files.key, password=no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise PreconditionFailedError(
            f"tls: {files.certificate} and {files.key} are not a certificate and its key, both "
            f"unencrypted PEM: {error}"
        ) from error
    if files.ca is not None:
        try:
            context.load_verify_locations(cadata=pem.ca.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise PreconditionFailedError(
                f"tls: {files.ca} does not hold certificates of authorities as PEM: {error}"
            ) from error
    return context


def no_password() -> str:
    """Refuse to give a password: without this, OpenSSL would ask at the terminal, and the event
    loop would wait for the answer."""
    raise ValueError("the key is encrypted")


def _check_own(loaded: _Loaded, node_id: NodeId, path: Path) -> None:
    """Connect to itself in memory. Raises PreconditionFailedError when other nodes would refuse
    the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = loaded.dial.wrap_bio(to_client, to_server)
    server = loaded.raft.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLError as error:
        raise PreconditionFailedError(
            f"tls: other nodes would refuse the certificate in {path}: {reason(error)}"
        ) from error
    identity = of_certificate(client.getpeercert())
    if identity is None or identity.node_id != node_id:
        raise PreconditionFailedError(
            f"tls: the certificate in {path} is not that of node {node_id}: it needs the URI "
            f"{node_uri(node_id)} among its subject alternative names; scripts/make-certs makes one"
        )


def reason(error: ssl.SSLError) -> str:
    """The reason of a TLS failure, without OpenSSL's numbers and source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()
