"""Certificates of a NATS server of a test, of an authority of its own."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    authority: trustme.CA
    folder: Path

    @property
    def config(self) -> str:
        return f'cert_file: "{self.folder}/cert.pem", key_file: "{self.folder}/key.pem"'

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


def issued(folder: Path, *names: str) -> Certificates:
    authority = trustme.CA()
    server = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return Certificates(authority, folder)
