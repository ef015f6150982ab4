"""The configuration file: what is accepted, and the one line that names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_server.node.config import (
    PORTS,
    Config,
    ConfigurationError,
    NodeConfig,
    load,
    own_node,
    split_address,
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("JETSTREAM_")]:
        monkeypatch.delenv(name)


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return load(path)


def test_an_empty_file_is_a_single_node_on_loopback(tmp_path: Path) -> None:
    config = read(tmp_path, "")
    assert [node.id for node in config.nodes] == [0]
    assert config.nodes[0].grpc.listen == "127.0.0.1:9292"
    assert config.nodes[0].http.advertise == "127.0.0.1:9295"


LAUGHS = "\n".join(f"{each}: &{each} [{', '.join([seen] * 9)}]" for seen, each in (
    ("1", "a"), *((f"*{chr(at)}", chr(at + 1)) for at in range(97, 107))
))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("foo: 1", "cluster.yaml: foo: unknown key"),
        ("logs: {}", "logs: unknown key, did you mean log?"),
        ("log: {bogus: 1}", "log.bogus: unknown key"),
        ("nats: {embeded: true}", "nats.embeded: unknown key, did you mean embedded?"),
        ("segment_bytes: 1MiB", "segment_bytes: unknown key, did you mean log.segment_bytes?"),
        ("nodes: [{id: 0, rck: a}]", "nodes.0.rck: unknown key, did you mean rack?"),
        ("nats: {tls: {cafile: x}}", "nats.tls.cafile: unknown key, did you mean ca_file?"),
        ("nats: {servers: 3}", "nats.servers: Input should be a valid list"),
        ("log: {segment_bytes: 12}", "log.segment_bytes: "),
        ("log: {segment_bytes: many}", "log.segment_bytes: "),
        ("log: {flush_interval_ms: 0}", "log.flush_interval_ms: "),
        ("log: {flush_interval_ms: -5}", "log.flush_interval_ms: "),
        ("log: 3", "log: "),
        ("http: {cors_origins: ['*']}", "http.cors_origins.0: '*' is no origin as browsers send"),
        ("http: {cors_origins: ['https://a.b/']}", "http.cors_origins.0: 'https://a.b/' is no"),
        ("http: {cors_origins: ['https://a.b:443']}", "http.cors_origins.0: "),
        ("http: {cors_origins: [a.b]}", "http.cors_origins.0: 'a.b' is no origin"),
        ("http: {cors_origins: ['null']}", "http.cors_origins.0: "),
        ("http: {cors_origins: https://a.b}", "http.cors_origins: "),
        ("nats: {servers: ['ftp://x']}", "nats.servers.0: "),
        ("nodes: [{id: x}]", "nodes.0.id: "),
        ("nodes: []", "nodes: "),
        ("nodes: [{id: 0}, {id: 0}]", "nodes: two nodes have the same id"),
        ("nodes: [{id: 0}, {id: 1}]", "nodes: two ports are advertised as 127.0.0.1:9292"),
        ("nodes: [{id: 0, grpc: nonsense}]", "nodes.0.grpc.listen: 'nonsense' is not host:port"),
        ("nodes: [{id: 0, grpc: 'http://h:9292'}]", "nodes.0.grpc.listen: 'http://h:9292' is not"),
        ("nodes: [{id: 0, grpc: '[]:9292'}]", "nodes.0.grpc.listen: '[]:9292' is not host:port"),
        ("nodes: [{id: 0, grpc: '[::1:9292'}]", "nodes.0.grpc.listen: '[::1:9292' is not host:"),
        ("nodes: [{id: 0, grpc: '::1:9292'}]", "nodes.0.grpc.listen: '::1:9292' is not host:port"),
        ("nodes: [{id: 0, grpc: ' h:9292'}]", "nodes.0.grpc.listen: ' h:9292' is not host:port"),
        ("nodes: [{id: 0, grpc: 'h:９２'}]", "is not host:port"),
        (
            "nodes: [{id: 0, grpc: {listen: '127.0.0.1:1', advertise: '0.0.0.0:1'}}]",
            "nodes.0.grpc: advertise: nobody reaches 0.0.0.0:1: name this machine",
        ),
        ("log: {disk_reserve_bytes: 9EiB}", "log.disk_reserve_bytes: "),
        ("ingest: {uncommitted_bytes_max: 0}", "ingest.uncommitted_bytes_max: "),
        ("data: ''", "data: it is empty: name a folder"),
        ("nodes: [{id: 0, grpc: 9292}]", "nodes.0.grpc: 9292 is not host:port"),
        ("nodes: [{id: 0, grpc: '0.0.0.0:1'}]", "nodes.0.grpc: advertise is needed"),
        ("nodes: [{id: 0, grpc: '10.1.1.1:1'}]", "nodes: node 0 listens for grpc on 10.1.1.1"),
        ("nats: {user: u}", "nats: user and password go together"),
        ("nats: {token: t, credentials_file: f}", "nats: give one of"),
        ("ingest: {ack_subjects: ['a..b']}", "ingest.ack_subjects.0: "),
        ("data: a\ndata: b", "cluster.yaml: data: given twice"),
        ("- a", "the file must be a mapping"),
        ("a: [", "is not YAML"),
        ("cluster: ''", "cluster: "),
        ("cluster: 2026-13-45", 'is not YAML: no valid timestamp in "'),
        ("2026-13-45: x", "is not YAML: no valid timestamp"),
        ("cluster: !!timestamp x", "is not YAML: no valid timestamp"),
        ("cluster: !!int x", "is not YAML: no valid int"),
        ("cluster: !!bool x", "is not YAML: no valid bool"),
        (f"nodes: {'9' * 5_000}", "is not YAML: no valid int"),
        ("? [a]\n: b", "is not YAML: a list or a mapping as key"),
        ("? {a: b}\n: c", "is not YAML: a list or a mapping as key"),
        ("<<: 3", "is not YAML: "),
        ("[" * 5_000 + "]" * 5_000, "too deep in each other"),
        (LAUGHS, "values or more: do anchors repeat them?"),
        ("log: &a {<<: *a}", "values or more: do anchors repeat them?"),
        (f"nodes: [{{id: 0, grpc: '{'x' * 5_000}'}}]", f"listen: '{'x' * 100}' is not host:port"),
        ("{a: " * 5_000 + "}" * 5_000, "too deep in each other"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mapping_may_be_merged_into_others(tmp_path: Path) -> None:
    text = "log:\n  <<: {segment_bytes: 2MiB, flush_interval_ms: 50}\n  flush_interval_ms: 60"
    config = read(tmp_path, text)
    assert (config.log.segment_bytes, config.log.flush_interval_ms) == (2 << 20, 60)


def test_a_refused_value_is_not_repeated_because_it_may_be_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, "nats: {password: [hunter2], user: u}")
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_in_the_representation(tmp_path: Path) -> None:
    config = read(tmp_path, "nats: {user: u, password: hunter2}")
    assert "hunter2" not in repr(config)


def test_a_variable_overrides_the_file_and_leaves_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_LOG__FLUSH_INTERVAL_MS", "77")
    config = read(tmp_path, "log: {segment_bytes: 1MiB, flush_interval_ms: 5000}")
    assert (config.log.flush_interval_ms, config.log.segment_bytes) == (77, 1 << 20)


def test_the_command_line_overrides_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_DATA", "/from/variable")
    assert load(None, {"data": Path("/from/command/line")}).data == Path("/from/command/line")
    assert load(None).data == Path("/from/variable")


def test_a_nats_server_of_the_command_line_keeps_login_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_NATS__TOKEN", "s3cr3t")
    monkeypatch.setenv("JETSTREAM_NATS__EMBEDDED", "true")
    found = load(None, {"nats": {"servers": ["nats://h:1"], "embedded": False}}).nats
    assert (found.servers, found.embedded, found.token) == (["nats://h:1"], False, "s3cr3t")


def test_an_unknown_variable_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETSTREAM_FLUSH", "1")
    with pytest.raises(ConfigurationError, match=r"^JETSTREAM_FLUSH: unknown variable"):
        load(None)


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("JETSTREAM_NAT__EMBEDDED", "JETSTREAM_NAT__EMBEDDED: unknown variable, did you mean "
         "JETSTREAM_NATS__EMBEDDED?"),
        ("JETSTREAM_SERVER", "did you mean JETSTREAM_SERVERS?"),
        ("JETSTREAM_NATS__EMBEDED", "JETSTREAM_NATS__EMBEDED: unknown key, did you mean embedded?"),
        ("JETSTREAM_LOG__SEGMENT_BYTES", "JETSTREAM_LOG__SEGMENT_BYTES: Input should be"),
        ("JETSTREAM_NODES", "JETSTREAM_NODES: "),
    ],
)  # fmt: skip
def test_a_mistake_in_a_variable_names_the_variable_and_not_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, line: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, "log: {segment_bytes: 1MiB}")
    assert line in str(caught.value)
    assert "cluster.yaml" not in str(caught.value)


@pytest.mark.parametrize("variable", ["JETSTREAM_RACK", "JETSTREAM_SERVERS", "JETSTREAM_TOKEN"])
def test_a_variable_of_clients_stops_no_server(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "a")
    assert load(None).nodes[0].rack == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JETSTREAM_LOG__SEGMENT_BYTES", "1"),
        ("JETSTREAM_LOG__SEGMENT_BYTES", "1TiB"),
        ("JETSTREAM_LOG__SEGMENT_BYTES", "many"),
        ("JETSTREAM_LOG__FLUSH_INTERVAL_MS", "0"),
        ("JETSTREAM_INGEST__PENDING_ACKS_MAX", "0"),
        ("JETSTREAM_INGEST__ACK_SUBJECTS", '["a b"]'),
        ("JETSTREAM_NODES", "[]"),
        ("JETSTREAM_CLUSTER", ""),
    ],
)
def test_a_variable_out_of_range_is_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load(None)
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["node4..example.org", ".example.org", f"{'a' * 64}.org"])
def test_an_address_that_cannot_be_looked_up_is_one_line_that_names_it(
    tmp_path: Path, host: str
) -> None:
    for key, values in (
        ("nodes.0.raft.advertise", f"{{listen: '127.0.0.1:1', advertise: '{host}:9294'}}"),
        ("nodes.0.raft.listen", f"'{host}:9294'"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            read(tmp_path, f"nodes: [{{id: 0, raft: {values}}}]")
        assert key in str(caught.value)
        assert f"'{host}:9294' names no possible host" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"nats\.servers\.0: .*no possible host") as caught:
        read(tmp_path, f"nats: {{servers: ['nats://user:s3cr3t@{host}:4222']}}")
    assert "s3cr3t" not in str(caught.value)


def test_an_address_of_ip6_stands_in_brackets(tmp_path: Path) -> None:
    config = read(tmp_path, "nodes: [{id: 0, grpc: '[::1]:9292'}]")
    assert split_address(config.nodes[0].grpc.listen) == ("::1", 9292)


def test_pages_are_named_by_their_origins(tmp_path: Path) -> None:
    names = ["https://app.example", "http://localhost:3000", "http://[::1]:8080"]
    assert read(tmp_path, f"http: {{cors_origins: {names}}}").http.cors_origins == names


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: No such file or directory$"):
        load(tmp_path / "none.yaml")


def test_listening_everywhere_needs_insecure_and_an_advertised_address(tmp_path: Path) -> None:
    endpoint = "{listen: '0.0.0.0:1000', advertise: 'log.example:1000'}"
    with pytest.raises(ConfigurationError, match="insecure"):
        read(tmp_path, f"nodes: [{{id: 0, grpc: {endpoint}}}]")
    config = read(tmp_path, f"insecure: true\nnodes: [{{id: 0, grpc: {endpoint}}}]")
    assert config.nodes[0].grpc.advertise == "log.example:1000"


def test_tls_with_tokens_or_client_certificates_replaces_insecure(tmp_path: Path) -> None:
    everywhere = "nodes: [{id: 0, grpc: {listen: '0.0.0.0:1000', advertise: 'log.example:1000'}}]"
    tokens = "credential: secret\nsecurity: {enabled: true}\n"
    tls = "tls: {certificate_file: cert.pem, key_file: key.pem}\n"
    known = (
        "tls: {certificate_file: c.pem, key_file: k.pem, ca_file: ca.pem, client_auth: required}\n"
    )
    for allowed in (tls + tokens, known, "insecure: true\n", "insecure: true\n" + tokens):
        assert read(tmp_path, allowed + everywhere).nodes[0].grpc.listen == "0.0.0.0:1000"
    for refused in ("", tls, tokens):
        with pytest.raises(ConfigurationError, match=r"client_auth.*security\.enabled.*insecure"):
            read(tmp_path, refused + everywhere)


def test_a_node_finds_itself_by_argument_variable_or_host_name() -> None:
    import socket

    nodes = [
        NodeConfig.on_ports(0, 10000),
        NodeConfig.on_ports(1, 10010).model_copy(update={"host": socket.gethostname()}),
    ]
    config = load(None, {"nodes": nodes})
    assert own_node(config, 0, {}).id == 0
    assert own_node(config, None, {"JETSTREAM_NODE_ID": "0"}).id == 0
    assert own_node(config, None, {}).id == 1
    with pytest.raises(ConfigurationError, match="no node with id 7"):
        own_node(config, 7, {})
    with pytest.raises(ConfigurationError, match="JETSTREAM_NODE_ID: 'x'"):
        own_node(config, None, {"JETSTREAM_NODE_ID": "x"})


def four_nodes(**others: object) -> Config:
    nodes = [
        {
            "id": node,
            **{port: f"127.0.0.1:{9000 + 10 * node + at}" for at, port in enumerate(PORTS)},
        }
        for node in range(4)
    ]
    return Config(nodes=nodes, credential="x", **others)  # type: ignore[arg-type]


def test_the_first_nodes_are_voters_an_odd_number_of_them() -> None:
    assert list(four_nodes().voter_addresses) == [0, 1, 2]


def test_the_file_may_say_which_nodes_are_voters() -> None:
    config = four_nodes(voters=[3, 1])
    assert config.voter_addresses == {1: "127.0.0.1:9012", 3: "127.0.0.1:9032"}


@pytest.mark.parametrize("join", ["a:9294", ["a:9294", "b:9294"]])
def test_a_node_that_joins_lists_itself_and_whom_it_joins(join: str | list[str]) -> None:
    config = Config(nodes=[NodeConfig(id=3)], join=join, credential="secret")
    assert config.join_addresses == (("a:9294",) if isinstance(join, str) else tuple(join))
    assert (config.voter_addresses, config.is_alone) == ({}, False)
    with pytest.raises(ValueError, match="join: a node that joins lists only itself"):
        four_nodes(join=join)
    with pytest.raises(ValueError, match="credential: needed with several nodes"):
        Config(nodes=[NodeConfig(id=3)], join=join)
    with pytest.raises(ValueError, match="join"):
        Config(nodes=[NodeConfig(id=3)], join="a", credential="secret")


@pytest.mark.parametrize("voters", [[7], [1, 1]])
def test_voters_that_are_no_nodes_or_given_twice_are_refused(voters: list[int]) -> None:
    with pytest.raises(ValueError, match="voters: "):
        four_nodes(voters=voters)


def test_a_section_that_the_environment_gives_as_a_word_is_refused_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JETSTREAM_NATS", "nats://somewhere:4222")
    with pytest.raises(ConfigurationError, match=r"^environment variable JETSTREAM_NATS: "):
        load(None)
