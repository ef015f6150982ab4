from __future__ import annotations

import base64
from pathlib import Path

import nkeys
import pytest

from jetstream_protocol.errors import UnauthenticatedError
from jetstream_server.ingest.nats.auth import Credentials
from tests.support.nats_jwt import new_operator, new_user


def test_each_way_to_log_in_has_its_fields() -> None:
    assert Credentials().connect_fields("n") == {}
    assert Credentials(token="t").connect_fields("n") == {"auth_token": "t"}
    assert Credentials(user="u", password="p").connect_fields("n") == {"user": "u", "pass": "p"}


def test_an_nkey_signs_the_servers_challenge() -> None:
    seed, public_key = new_user()
    fields = Credentials(nkey_seed=seed).connect_fields("challenge")
    assert fields["nkey"] == public_key
    signature = base64.urlsafe_b64decode(fields["sig"] + "==")
    assert nkeys.from_seed(seed.encode()).verify(b"challenge", signature)


def test_a_server_without_challenge_gets_no_signature() -> None:
    seed, _ = new_user()
    assert Credentials(nkey_seed=seed).connect_fields("")["sig"] == ""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_creds_file_gives_jwt_and_signature(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "user.creds"
    path.write_bytes(new_operator().credentials().replace("\n", newline).encode())
    fields = Credentials(credentials_file=path).connect_fields("challenge")
    assert fields["jwt"].count(".") == 2
    assert fields["sig"]


@pytest.mark.parametrize("seed", ["SUAsecret", "", "secret" * 20, "SUÄsecret"])
def test_a_seed_that_is_none_is_refused_without_being_shown(tmp_path: Path, seed: str) -> None:
    path = tmp_path / "seed"
    path.write_text(seed)
    with pytest.raises(UnauthenticatedError) as caught:
        Credentials(nkey_seed_file=path).connect_fields("n")
    assert not seed or "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnauthenticatedError, match="missing"):
        Credentials(nkey_seed_file=tmp_path / "missing").connect_fields("n")
    with pytest.raises(UnauthenticatedError, match="missing"):
        Credentials(credentials_file=tmp_path / "missing").connect_fields("n")


def test_secrets_are_in_no_repr() -> None:
    shown = repr(Credentials(user="u", password="s3cret", token="s3cret", nkey_seed="s3cret"))
    assert "s3cret" not in shown
