"""The files of `nats.tls` are read again for each connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from examples.certificates.authority import Authority
from jetstream_server.node.config import ConfigurationError, NatsConfig, NatsTlsConfig
from jetstream_server.node.nats_options import link_options


def trusted(options: object) -> set[str]:
    context = options.tls_context()  # type: ignore[attr-defined]
    return {name[0][1] for each in context.get_ca_certs() for name in each["subject"]}


def test_a_new_authority_counts_from_the_next_connection_and_a_broken_file_does_not(
    tmp_path: Path,
) -> None:
    ca = Authority(tmp_path / "old", "old").certificate_file
    cert, key = Authority(tmp_path / "old").client("node")
    tls = NatsTlsConfig(ca_file=ca, certificate_file=cert, key_file=key)
    options = link_options(NatsConfig(tls=tls), 0)
    assert trusted(options) == {"old"}
    ca.write_bytes(Authority(tmp_path / "new", "new").certificate_file.read_bytes())
    assert trusted(options) == {"new"}
    key.write_text("none")
    with capture_logs() as logs:
        assert trusted(options) == {"new"}
    assert [line["event"] for line in logs] == ["certificates_not_reloaded"]
    with pytest.raises(ConfigurationError, match=r"nats\.tls: "):
        link_options(NatsConfig(tls=tls), 0)


def test_nobody_is_asked_for_the_password_of_a_key(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca").certificate_file
    cert, key = Authority(tmp_path / "ca").client("node")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    tls = NatsTlsConfig(ca_file=ca, certificate_file=cert, key_file=key)
    with pytest.raises(ConfigurationError, match=r"nats\.tls: the key is encrypted"):
        link_options(NatsConfig(tls=tls), 0)
