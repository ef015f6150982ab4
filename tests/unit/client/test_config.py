"""What people write as servers becomes addresses, or one clear refusal."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from jetstream_client import AsyncClient, Client, ClientConfig, InvalidRequestError, NatsOptions
from jetstream_client.values.config import parse_address


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("localhost:9292", "localhost:9292"),
        ("localhost", "localhost:9292"),
        ("10.0.0.1:19", "10.0.0.1:19"),
        ("[::1]:9000", "[::1]:9000"),
        ("[::1]", "[::1]:9292"),
    ],
)
def test_an_address_is_host_and_port_with_a_default(written: str, address: str) -> None:
    assert parse_address(written) == address


@pytest.mark.parametrize(
    "written", ["", ":", "host:", ":9292", "host:0", "host:65536", "host:http", "::1", "http://h:1"]
)
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(InvalidRequestError, match="invalid server"):
        parse_address(written)


def test_servers_may_be_a_comma_list_or_a_list() -> None:
    expected = ("a:1", "b:9292")
    assert ClientConfig.of("a:1, b").servers == expected
    assert ClientConfig.of(["a:1", "b"]).servers == expected


def test_without_servers_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_SERVERS", "a:1,b:2")
    assert ClientConfig.of().servers == ("a:1", "b:2")
    monkeypatch.delenv("JETSTREAM_SERVERS")
    assert ClientConfig.of().servers == ("localhost:9292",)


def test_an_empty_list_of_servers_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no server given"):
        ClientConfig.of([])


@pytest.mark.parametrize("setting", [{"timeout": 0.0}, {"in_flight_max": 0}])
def test_impossible_settings_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="must be positive"):
        ClientConfig(**setting)  # type: ignore[arg-type]


def test_a_configuration_survives_pickling() -> None:
    config = ClientConfig.of(
        "a:1", nats="nats://b:2", nats_options=NatsOptions(user="u", password="p"), timeout=3
    )
    assert pickle.loads(pickle.dumps(config)) == config


def test_secrets_are_not_shown() -> None:
    options = NatsOptions(user="u", password="hush-1", token="hush-2")
    url = "nats://u:hush-3@b:2"
    shown = repr(ClientConfig.of("a:1", nats=url, nats_options=options, token="hush-4"))
    assert "hush" not in shown


def test_without_a_token_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_TOKEN", "from-the-environment")
    assert ClientConfig.of().token == "from-the-environment"
    assert ClientConfig.of(token="given").token == "given"


@pytest.mark.parametrize("token", ["two words", "a\nline", "ä"])
def test_what_cannot_be_sent_as_a_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="the token is not one") as refused:
        ClientConfig.of(token=token)
    assert token not in str(refused.value)


def test_a_token_file_is_read_anew_and_its_errors_name_the_file_and_never_the_token(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    config = ClientConfig.of(token_file=str(path))
    assert "planted" not in repr(config)
    with pytest.raises(InvalidRequestError, match=r"cannot read the token file .*: No such file"):
        config.current_token()
    path.write_text("planted-1\n")
    assert config.current_token() == "planted-1"
    path.write_text("planted-2")
    assert config.current_token() == "planted-2"
    path.write_text(" \n")
    with pytest.raises(InvalidRequestError, match="is empty"):
        config.current_token()
    path.write_bytes(b"planted \xff")
    with pytest.raises(InvalidRequestError, match="holds is not one") as caught:
        config.current_token()
    assert "planted" not in str(caught.value)


def test_the_environment_may_name_a_token_file_and_what_is_given_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JETSTREAM_TOKEN", raising=False)
    monkeypatch.setenv("JETSTREAM_TOKEN_FILE", "/run/token")
    assert ClientConfig.of().token_file == "/run/token"
    assert ClientConfig.of(token="given").token_file == ""
    assert ClientConfig.of(token_file="/run/other").token_file == "/run/other"
    monkeypatch.setenv("JETSTREAM_TOKEN", "both")
    assert (ClientConfig.of().token, ClientConfig.of().token_file) == ("both", "")
    assert ClientConfig.of(token_file="/run/other").token == ""
    with pytest.raises(InvalidRequestError, match="keep one"):
        ClientConfig.of(token="given", token_file="/run/other")


def test_one_address_is_no_tuple_of_its_letters() -> None:
    with pytest.raises(TypeError, match="servers must be a tuple of addresses, not one str"):
        ClientConfig("localhost:9292")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one str or a list, not int"):
        ClientConfig.of(9292)  # type: ignore[arg-type]


def test_a_setting_of_a_configuration_is_said_to_be_one() -> None:
    with pytest.raises(TypeError, match=r"ClientConfig\(…, retry_on_failed_connect=…\)"):
        Client("localhost:1", retry_on_failed_connect=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_an_argument_that_no_client_has_is_refused(
    client: type[Client] | type[AsyncClient],
) -> None:
    """It would be taken for a callback, and a client without a token would be the result."""
    with pytest.raises(TypeError, match="no argument 'token_file'"):
        client("localhost:1", token_file="token")  # type: ignore[call-arg]
