"""A keyed group has no rights of its own: what is done to it needs the rights on its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jetstream_client import Client, PermissionDeniedError
from jetstream_client.cli.main import run as run_command
from tests.support.secured import SecuredServer
from tests.support.stages import secured_stage

server = secured_stage()


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def command(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs the command line with the connection of this client; what it prints."""
    monkeypatch.setattr(Client, "from_config", lambda *_: client)
    monkeypatch.setattr(Client, "__exit__", lambda *_: None)

    def run(words: str) -> str:
        capfd.readouterr()
        run_command(words.split())
        out, err = capfd.readouterr()
        return out + err

    return run


def test_the_rights_on_its_streams_are_enough_for_a_group(
    server: SecuredServer,
    admin: Client,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    admin.create_group("orders", "orders.>", streams=2)
    admin.create_stream("private", "private")
    admin.publish("orders.a", b"hello", key="k")
    admin.add_acl("user:owner", "all", stream="orders-*", subject=">")
    with server.client(admin.create_token("user:owner").text) as owner:
        run = command(owner, monkeypatch, capfd)
        assert "orders-0" in run("stream describe orders")
        assert "hello" in run("fetch orders")
        assert run("stream alter orders --max-age 1h").startswith("altered orders-0")
        assert run("stream pause orders") == "paused orders-0\npaused orders-1\n"
        assert run("stream purge orders --yes").startswith("purged orders-0")
        assert "private" in run("stream pause private")
        assert run("stream delete orders --yes") == "deleted orders-1\ndeleted orders-0\n"
        monkeypatch.undo()


def test_a_stream_without_the_right_is_not_changed_and_hidden_ones_are_missed(
    server: SecuredServer,
    admin: Client,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    admin.create_group("mixed", "mixed.>", streams=3)
    admin.add_acl("user:looker", "describe", stream="mixed-*", subject=">")
    admin.add_acl("user:looker", "all", stream="mixed-0", subject=">")
    admin.add_acl("user:partner", "all", stream="mixed-0", subject=">")
    with server.client(admin.create_token("user:looker").text) as looker:
        with pytest.raises(PermissionDeniedError) as raised:
            looker.alter_keyed_group("mixed", max_age=60.0)
        assert "for mixed-1 to mixed-2 of group 'mixed'" in raised.value.__notes__[-1]
        with pytest.raises(PermissionDeniedError):
            looker.delete_keyed_group("mixed")
    with server.client(admin.create_token("user:partner").text) as partner:
        run = command(partner, monkeypatch, capfd)
        for words in ("fetch mixed", "stream pause mixed", "stream purge mixed --yes"):
            assert "lacks partitions [1, 2] of 3, or you may not see them" in run(words)
        monkeypatch.undo()
    described = admin.describe_keyed_group("mixed")
    assert [each.max_age for each in described] == [60, 0, 0]
    assert not any(each.paused for each in described)
