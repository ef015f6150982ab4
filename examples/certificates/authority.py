"""An authority of one's own, and the certificates that it signs, as PEM files in one folder.

The folder holds ca.crt and ca.key, and NAME.crt and NAME.key for each certificate. Keys are
unencrypted and readable by their owner only. This is to try things out: who runs a real authority
keeps its key elsewhere.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365
NODE_URI = "jetstream://node/{}"
_SKEW = datetime.timedelta(minutes=5)
"""Certificates hold from a moment ago: clocks differ."""


class Authority:
    """`Authority(folder)` opens the one in that folder, or makes it."""

    def __init__(self, folder: Path, name: str = "Jetstream test authority") -> None:
        self.folder = folder
        self.certificate_file = folder / "ca.crt"
        key_file = folder / "ca.key"
        folder.mkdir(parents=True, exist_ok=True)
        if key_file.exists():
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        self._certificate = (
            _builder(subject, subject, self._key, datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        _write_key(key_file, self._key)
        self.certificate_file.write_bytes(_pem(self._certificate))

    def node(self, node_id: int, hosts: Sequence[str], name: str = "") -> tuple[Path, Path]:
        """A certificate of that node, valid for the host names and addresses; its files."""
        return self.issue(
            name or f"node-{node_id}", hosts=hosts, uris=[NODE_URI.format(node_id)], serves=True
        )

    def client(self, name: str) -> tuple[Path, Path]:
        """A certificate of that client; its files."""
        return self.issue(name)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        uris: Sequence[str] = (),
        serves: bool = False,
        valid_for: datetime.timedelta = datetime.timedelta(days=DAYS),
    ) -> tuple[Path, Path]:
        """A certificate whose common name is `name`; replaces the files of one with that name.

        serves: it may be shown by a server, too. valid_for: negative for one that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _builder(_name(name), self._certificate.subject, key, valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        names = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        _write_key(key_file, key)
        certificate_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return certificate_file, key_file


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    valid_for: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + valid_for) - _SKEW)
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.unlink(missing_ok=True)  # An older one may be readable by others.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
