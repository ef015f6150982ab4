"""Which cluster a command talks to: options, environment and contexts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from jetstream_client import InvalidRequestError, NatsOptions, TlsConfig
from jetstream_client.cli.connecting import Common, reached
from jetstream_client.cli.context_file import Context, ContextFile, default_path

PROD = Context("prod:1", tls=True, ca="/ca", token="secret-of-prod")
TRY = Context("try:1")
NATS = ("NATS_CA", "NATS_CERT", "NATS_KEY", "NATS_CREDS")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContextFile:
    for variable in ("SERVERS", "TOKEN", "CONTEXT", "CA", "CERT", "KEY", *NATS):
        monkeypatch.delenv(f"JETSTREAM_{variable}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = ContextFile()
    file.add("prod", PROD)
    file.add("try", TRY)
    return file


def test_the_first_context_is_used_until_another_is(file: ContextFile) -> None:
    found = reached(None, Common(), 1.0)
    assert (found.servers, found.token, found.tls) == (
        ("prod:1",),
        "secret-of-prod",
        TlsConfig("/ca"),
    )
    file.use("try")
    found = reached(None, Common(), 1.0)
    assert (found.servers, found.token, found.tls) == (("try:1",), "", None)
    file.remove("try")
    assert ContextFile().current == ""
    assert reached(None, Common(), 1.0).servers == ("localhost:9292",)


def test_a_context_that_nobody_named_tells_other_servers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for found in (reached("other:1", Common(), 1.0), _with_variable(monkeypatch)):
        assert found.servers == ("other:1",)
        assert found.token == ""
        assert found.tls is None


def _with_variable(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("JETSTREAM_SERVERS", "other:1")
    return reached(None, Common(), 1.0)


def test_a_named_context_counts_whatever_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_SERVERS", "other:1")
    assert reached(None, Common(context="prod"), 1.0).servers == ("prod:1",)
    monkeypatch.setenv("JETSTREAM_CONTEXT", "prod")
    assert reached(None, Common(), 1.0).token == "secret-of-prod"
    own = TlsConfig("/other")
    found = reached("new:1", Common(tls=own), 1.0)
    assert (found.servers, found.tls, found.token) == (("new:1",), own, "secret-of-prod")
    with pytest.raises(InvalidRequestError, match=r"no context 'prd'; known are: prod, try"):
        reached(None, Common(context="prd"), 1.0)


def test_only_its_owner_reads_the_file_and_what_is_shown_has_no_token() -> None:
    assert stat.S_IMODE(default_path().stat().st_mode) == 0o600
    assert "secret" not in repr(PROD)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65])
def test_what_is_no_name_is_refused(file: ContextFile, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot name a context"):
        file.add(name, TRY)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"contexts": {"a": 5}, "current": ""}', "null"])
def test_a_damaged_file_is_named(text: str) -> None:
    default_path().write_text(text)
    with pytest.raises(InvalidRequestError, match=r"contexts\.json is damaged"):
        ContextFile()


def test_the_environment_turns_tls_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_CA", "/x")
    assert TlsConfig.of(None) == TlsConfig("/x")
    assert TlsConfig.of(False) is None
    monkeypatch.setenv("JETSTREAM_CA", "system")
    monkeypatch.setenv("JETSTREAM_CERT", "/c")
    assert TlsConfig.of(None) == TlsConfig(None, "/c")
    assert TlsConfig.of(True) == TlsConfig()


def test_files_for_nats_come_from_options_a_context_or_the_environment(
    file: ContextFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"JETSTREAM_NATS_{name}", f"/env/{name}")
    monkeypatch.setenv("JETSTREAM_NATS_CREDS", "/env/creds")
    of_env = NatsOptions(
        credentials="/env/creds", tls_ca="/env/CA", tls_certificate="/env/CERT", tls_key="/env/KEY"
    )
    assert reached(None, Common(), 1.0).nats_options == of_env
    said = NatsOptions(tls_ca="/said")
    assert reached(None, Common(), 1.0, None, said).nats_options == NatsOptions(
        credentials="/env/creds", tls_ca="/said"
    ), "the files for TLS go together"
    file.add("own", Context("own:1", nats_ca="/own", nats_creds="/own/creds"))
    file.use("own")
    of_context = NatsOptions(credentials="/own/creds", tls_ca="/own")
    assert reached(None, Common(), 1.0).nats_options == of_context
    assert reached(None, Common(), 1.0, "nats://other:1").nats_options == of_env
    assert reached(None, Common(context="own"), 1.0, "x:1").nats_options == of_context
    monkeypatch.setenv("JETSTREAM_NATS_CA", "system")
    assert NatsOptions.of_environment().tls
    assert NatsOptions.of_environment().tls_ca is None
