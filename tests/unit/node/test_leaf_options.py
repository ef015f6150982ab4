"""The configuration of the JetStream API and its leaf link."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_server.node.config import Config, ConfigurationError, check
from jetstream_server.node.nats_options import leaf_options, leaf_servers, open_leaf_port


def config(**nats: object) -> Config:
    return check({"nats": nats}, None, environment={})


def test_the_api_is_off_by_default() -> None:
    assert config().nats.api_domain == ""


def test_without_servers_of_its_own_the_link_goes_to_the_hosts_of_nats() -> None:
    servers = ["nats://one:4222", "tls://me:pass@two", "three:5", "nats://[::1]:4222"]
    assert leaf_servers(config(servers=servers).nats) == [
        "nats://one:7422",
        "tls://me:pass@two:7422",
        "nats://three:7422",
        "nats://[::1]:7422",
    ]


def test_servers_may_be_written_as_in_the_configuration_of_nats() -> None:
    leaf = {"servers": ["nats-leaf://hub:7423", "hub"]}
    assert leaf_servers(config(leaf=leaf).nats) == ["nats://hub:7423", "hub"]


def test_a_login_of_its_own_takes_the_place_of_that_of_nats() -> None:
    own = {"token": "secret"}
    login = leaf_options(config(user="me", password="word", leaf=own).nats, 3, "c").credentials
    assert (login.token, login.user) == ("secret", "")
    shared = leaf_options(config(user="me", password="word").nats, 3, "c").credentials
    assert (shared.user, shared.password) == ("me", "word")


def test_nodes_have_names_of_their_own_on_the_link() -> None:
    names = {leaf_options(config().nats, number, "c").name for number in range(3)}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("nats", "complaint"),
    [
        ({"api_domain": "a.b"}, "nats.api_domain"),
        ({"api_domain": "a b"}, "nats.api_domain"),
        ({"api_domain": ">"}, "nats.api_domain"),
        ({"api_principal": "app"}, "write user:NAME"),
        ({"leaf": {"user": "me"}}, "user and password go together"),
        ({"leaf": {"token": "a", "user": "b", "password": "c"}}, "give one of"),
        ({"leaf": {"servers": ["http://hub"]}}, "nats://host:port"),
        ({"leaf": {"server": ["hub"]}}, "did you mean servers"),
    ],
)
def test_what_cannot_be_is_refused(nats: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        config(**nats)


def test_passwords_of_the_link_are_not_shown() -> None:
    leaf = {"user": "me", "password": "pla1nly"}
    assert "pla1nly" not in repr(config(leaf=leaf))


def test_an_embedded_server_opens_the_port_of_the_link(tmp_path: Path) -> None:
    assert open_leaf_port(tmp_path, config(embedded=True).nats) == []
    leaf = {"servers": ["nats://127.0.0.1:7999"]}
    flag, file = open_leaf_port(tmp_path, config(api_domain="log", leaf=leaf).nats)
    assert flag == "--config"
    assert "127.0.0.1:7999" in Path(file).read_text()
