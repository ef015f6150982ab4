"""Names from certificates: real ones, as Python's ssl and as gRPC tell of them."""

from __future__ import annotations

import pytest

from jetstream_server.net.tls import PeerIdentity, node_uri, of_auth_context, of_certificate


def certificate(*names: tuple[str, str], common: str = "") -> dict[str, object]:
    subject = ((("organizationName", "us"),), (("commonName", common),)) if common else ()
    return {"subject": subject, "subjectAltName": names}


NODE = ("URI", "jetstream://node/3")


@pytest.mark.parametrize(
    ("found", "identity"),
    [
        (certificate(("DNS", "a"), ("URI", "spiffe://x/y"), common="c"), "spiffe://x/y"),
        (certificate(("email", "a@b.c"), ("DNS", "first"), ("DNS", "second")), "first"),
        (certificate(("IP Address", "127.0.0.1"), ("email", "a@b.c"), common="c"), "a@b.c"),
        (certificate(("IP Address", "127.0.0.1"), common="billing"), "billing"),
    ],
)
def test_a_client_is_named_by_uri_then_dns_then_email_then_common_name(
    found: dict[str, object], identity: str
) -> None:
    assert of_certificate(found) == PeerIdentity(identity)


def test_a_node_is_recognised_by_its_uri_wherever_it_stands() -> None:
    found = certificate(("DNS", "a"), ("URI", "spiffe://x/y"), NODE, common="c")
    assert of_certificate(found) == PeerIdentity(node_uri(3), node_id=3)
    assert of_certificate(certificate(("DNS", "jetstream://node/3"))) == PeerIdentity(node_uri(3))


@pytest.mark.parametrize(
    "uris",
    [
        ["jetstream://node/3", "jetstream://node/4"],
        ["jetstream://node/"],
        ["jetstream://node/03"],
        ["jetstream://node/-1"],
        ["jetstream://node/65536"],
        ["jetstream://node/3/x"],
        ["JETSTREAM://node/3"],
        ["jetstream://admin"],
    ],
)
def test_a_certificate_that_is_almost_a_nodes_names_nobody(uris: list[str]) -> None:
    assert of_certificate(certificate(*(("URI", uri) for uri in uris), common="c")) is None
    context = {"peer_uri": [uri.encode() for uri in uris], "x509_common_name": [b"c"]}
    assert of_auth_context(context) is None


@pytest.mark.parametrize("name", ["x" * 256, "a\nb", ""])
def test_a_certificate_without_a_usable_name_names_nobody(name: str) -> None:
    assert of_certificate(certificate(common=name)) is None
    assert of_auth_context({"x509_common_name": [name.encode()]}) is None


def test_no_certificate_names_nobody() -> None:
    assert of_certificate(None) is None
    assert of_certificate({}) is None
    assert of_auth_context({}) is None
    assert of_auth_context({"transport_security_type": [b"ssl"]}) is None
    assert of_auth_context({"peer_dns": [b"\xff"]}) is None


def test_grpc_gives_the_same_names() -> None:
    context = {
        "x509_common_name": [b"c"],
        "peer_email": [b"a@b.c"],
        "peer_dns": [b"first", b"second"],
    }
    assert of_auth_context(context) == PeerIdentity("first")
    assert of_auth_context(context | {"peer_uri": [b"spiffe://x/y"]}) == PeerIdentity(
        "spiffe://x/y"
    )
    node = context | {"peer_uri": [b"spiffe://x/y", b"jetstream://node/3"]}
    assert of_auth_context(node) == PeerIdentity(node_uri(3), node_id=3)
