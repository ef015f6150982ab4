"""The server's configuration: one typed YAML file, the same on every node, and `JETSTREAM_*`.

Precedence: command line, environment, file, default. `JETSTREAM_NATS__EMBEDDED=true` sets
`nats.embedded`; lists and mappings are given as JSON. An unknown key, a wrong type or an impossible
value raises ConfigurationError: one line that names the file or variable, the key, and for an
unknown key the one that was probably meant. docs/operations/configuration.md describes every key.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Hashable, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from yaml.constructor import ConstructorError

from jetstream_protocol import subjects
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.extras import install_command
from jetstream_protocol.frames import PRODUCE_BYTES_MAX
from jetstream_server.ingest.nats.server_pool import parse_url
from jetstream_server.lake.stores import check_url, lacks_extra
from jetstream_server.node.config_errors import (
    ENVIRONMENT_PREFIX,
    did_you_mean,
    keys_of,
    one_line,
    variable_of,
)
from jetstream_server.node.service_links import is_service_link
from jetstream_server.security.acl import check_principal

NODE_ID_VARIABLE = "JETSTREAM_NODE_ID"
# The SDK, the start-up code and scripts/cluster read these. They are not configuration keys.
OTHER_VARIABLES = {
    NODE_ID_VARIABLE,
    "JETSTREAM_SERVERS",
    "JETSTREAM_RACK",
    "JETSTREAM_TOKEN",
    "JETSTREAM_TOKEN_FILE",
    "JETSTREAM_CA",
    "JETSTREAM_CERT",
    "JETSTREAM_KEY",
    "JETSTREAM_NATS_CA",
    "JETSTREAM_NATS_CERT",
    "JETSTREAM_NATS_KEY",
    "JETSTREAM_NATS_CREDS",
    "JETSTREAM_CONTEXT",
    "JETSTREAM_CLUSTER_FOLDER",
    "JETSTREAM_PURE",
}

_DIGITS_MAX = 18
_SHOWN = 100
"""Characters of a value that an error repeats."""
_VALUES_MAX = 200_000
"""In a file. Ten lines of anchors that name each other have billions, which would use up memory."""
_PORT_DIGITS_MAX = 5
_HOST = re.compile(r"[^\s\x00-\x20:/?#@%\[\]]+")
"""A name or an IPv4 address: what a URL or a second port has beside these is a mistake."""
_ORIGIN = re.compile(
    r"(?P<scheme>https?)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:(?P<port>[1-9][0-9]{0,4}))?", re.ASCII
)
_BYTES_MAX = 2**62
"""More than any disk. Reported numbers of it fit in an int64."""
_MERGE = "tag:yaml.org,2002:merge"
PORT_BASE_DEFAULT = 9292
VOTERS_MAX = 5
"""More voters make every metadata change slower, and in practice no cluster safer."""
PORTS = ("grpc", "data", "raft", "http")
EMBEDDED_NATS_PORT_DEFAULT = 4222
NAME_PARTS = "each part of a name between dots has 1 to 63 characters"


def voter_count(nodes: int) -> int:
    """How many of the nodes vote on metadata: VOTERS_MAX at most; an odd number from three on."""
    return nodes if nodes < 3 else min(nodes - 1 + nodes % 2, VOTERS_MAX)


class ConfigurationError(Exception):
    """The configuration cannot be used; the message is one line that names the key."""


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port` into a pair. Raises ValueError."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS_MAX
    if not is_port or not 0 < int(port) < 65536:
        raise ValueError(f"{address[:_SHOWN]!r} is not host:port")
    if host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1]):
        return host[1:-1], int(port)
    if not _HOST.fullmatch(host):
        raise ValueError(f"{address[:_SHOWN]!r} is not host:port")
    if not _may_be_called(host):
        raise ValueError(f"{address[:_SHOWN]!r} names no possible host: {NAME_PARTS}")
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _may_be_called(host: str) -> bool:
    """Whether the host can be looked up by this name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _check_address(address: str) -> str:
    split_address(address)
    return address


def _check_pattern(subject: str) -> str:
    try:
        subjects.check_pattern(subject)
    except InvalidRequestError as error:
        raise ValueError(str(error)) from error
    return subject


def check_nats_url(url: str) -> str:
    """Return the URL. Raises ValueError, which never quotes it: it may contain a password."""
    try:
        host = parse_url(url).host
    except InvalidRequestError as error:
        raise ValueError(error.message) from error
    if not _may_be_called(host):
        raise ValueError(f"a NATS server address names no possible host: {NAME_PARTS}")
    return url


def _leaf_url(url: str) -> str:
    """The URL of a leaf node's server, whose scheme nats-server's own configuration also knows."""
    return check_nats_url(url.replace("nats-leaf://", "nats://", 1))


def _check_origin(origin: str) -> str:
    """Raises ValueError for one that no browser sends so."""
    found = _ORIGIN.fullmatch(origin)
    if found is None or found["port"] == {"http": "80", "https": "443"}[found["scheme"]]:
        raise ValueError(
            f"{origin[:100]!r} is no origin as browsers send it: https://app.example or "
            "http://localhost:3000, without a path; each is named, and * is not possible"
        )
    return origin


NatsUrl = Annotated[str, AfterValidator(check_nats_url)]
LeafUrl = Annotated[str, AfterValidator(_leaf_url)]
Address = Annotated[str, AfterValidator(_check_address)]
Origin = Annotated[str, AfterValidator(_check_origin)]
SubjectPattern = Annotated[str, AfterValidator(_check_pattern)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoint(_Section):
    """Where a port listens, and the address by which others reach it (behind NAT, in
    containers)."""

    listen: Address
    advertise: Address = ""

    @model_validator(mode="after")
    def _advertise_something_reachable(self) -> Self:
        if not self.advertise:
            if _is_wildcard(split_address(self.listen)[0]):
                raise ValueError("advertise is needed when listening on every interface")
            object.__setattr__(self, "advertise", self.listen)
        elif _is_wildcard(split_address(self.advertise)[0]):
            raise ValueError(f"advertise: nobody reaches {self.advertise}: name this machine")
        return self


def _endpoint(value: object) -> object:
    """Let an address stand for an endpoint that is reached where it listens."""
    if isinstance(value, int):  # YAML reads 9292, and 12:30, as numbers.
        raise ValueError(f"{value} is not host:port")
    return {"listen": value} if isinstance(value, str) else value


EndpointField = Annotated[Endpoint, BeforeValidator(_endpoint)]


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "*")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class NodeConfig(_Section):
    """One node of the cluster. Every node's file lists all nodes."""

    id: Annotated[int, Field(ge=0, le=65535)]
    host: str = ""
    """The machine's host name. A node started without an id finds its entry by it."""
    rack: str = ""
    grpc: EndpointField = Endpoint(listen="127.0.0.1:9292")
    data: EndpointField = Endpoint(listen="127.0.0.1:9293")
    raft: EndpointField = Endpoint(listen="127.0.0.1:9294")
    http: EndpointField = Endpoint(listen="127.0.0.1:9295")

    @classmethod
    def on_ports(cls, node_id: int, port_base: int, host: str = "127.0.0.1") -> NodeConfig:
        """A node whose ports follow one another from `port_base` on."""
        endpoints = {
            name: Endpoint(listen=f"{host}:{port_base + index}") for index, name in enumerate(PORTS)
        }
        return cls(id=node_id, **endpoints)  # type: ignore[arg-type]  # mypy sees one type for all


class TlsConfig(_Section):
    """TLS on every port of the node, and between the nodes."""

    certificate_file: Path
    key_file: Path
    ca_file: Path | None = None
    """The authority that signs the certificates of nodes and clients."""
    client_auth: Literal["none", "required"] = "none"
    """Whether clients must show a certificate."""

    @model_validator(mode="after")
    def _knows_whom_to_trust(self) -> Self:
        if self.client_auth == "required" and self.ca_file is None:
            raise ValueError("client_auth: required needs ca_file, who signs clients' certificates")
        return self


class SecurityConfig(_Section):
    """Whether clients must identify themselves and need rights; and the quotas of one principal on
    a node and in the cluster."""

    enabled: bool = False
    connections_per_principal: Annotated[int, Field(ge=1, le=4096)] = 1024
    requests_per_principal: Annotated[int, Field(ge=1, le=65536)] = 2048
    streams_per_principal: Annotated[int, Field(ge=0)] = 10_000
    groups_per_principal: Annotated[int, Field(ge=0)] = 1_000
    cursors_per_principal: Annotated[int, Field(ge=0)] = 50_000
    consumers_per_principal: Annotated[int, Field(ge=0)] = 5_000
    """On one node, which serves 10,000."""
    read_bytes_per_second: Annotated[ByteSize, Field(le=_BYTES_MAX)] = ByteSize(0)
    """0: any number."""
    write_bytes_per_second: Annotated[ByteSize, Field(le=_BYTES_MAX)] = ByteSize(0)
    """Limit on batches that producers send to the node itself. 0: none."""


class LimitsConfig(_Section):
    """What all clients together may use of a node, identified or not."""

    connections: Annotated[int, Field(ge=16, le=65536)] = 4096
    """Connections to the data plane; fewer if the process may open fewer files."""
    connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """Connections of one address to data plane or gRPC port; None: half of `connections`."""


class HttpConfig(_Section):
    """The HTTP port, beside its address."""

    cors_origins: list[Origin] = []
    """Pages of other servers that may use `/v1/`."""


class TracingConfig(_Section):
    """OpenTelemetry: docs/operations/tracing.md."""

    enabled: bool = False
    spans_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100


class EncryptionConfig(_Section):
    """Encryption at rest: the source of the node's keys. The first key encrypts."""

    key_file: Path | None = None
    key_command: list[str] = []
    """A command that prints the keys."""
    keys: str = Field(default="", repr=False)
    """The keys themselves, for the environment."""
    enabled: bool = True
    """False: the node only decrypts with these keys."""
    retired_key_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]] = []
    """Ids of keys that are gone on purpose."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.key_file, self.key_command, self.keys))) > 1:
            raise ValueError("give one of key_file, key_command, keys")
        return self


class NatsTlsConfig(_Section):
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    handshake_first: bool = False


class _NatsLogin(_Section):
    """How to log in to NATS."""

    user: str = ""
    password: str = Field(default="", repr=False)
    token: str = Field(default="", repr=False)
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None
    tls: NatsTlsConfig | None = None

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        ways = [self.user, self.token, self.nkey_seed_file, self.credentials_file]
        if sum(bool(way) for way in ways) > 1:
            raise ValueError("give one of user, token, nkey_seed_file, credentials_file")
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password go together")
        return self

    @property
    def has_login(self) -> bool:
        return bool(self.user or self.token or self.nkey_seed_file or self.credentials_file)


class LeafConfig(_NatsLogin):
    """The leaf link, over which clients reach the JetStream API. A login or TLS that is not given
    is that of `nats`."""

    servers: list[LeafUrl] = []
    """Empty: the hosts of `nats.servers`, on NATS's usual port for leaf nodes."""


class NatsConfig(_NatsLogin):
    """The NATS servers to subscribe to, or an embedded one."""

    embedded: bool = False
    embedded_listen: Address = f"127.0.0.1:{EMBEDDED_NATS_PORT_DEFAULT}"
    servers: list[NatsUrl] = ["nats://127.0.0.1:4222"]
    advertise: list[NatsUrl] = []
    """The URLs that clients get to publish to; empty: `servers`, without credentials."""
    api_domain: Annotated[str, Field(pattern="^([A-Za-z0-9_-]{1,64})?$")] = ""
    """The JetStream domain that this cluster serves; "": none."""
    api_principal: str = ""
    """Whose rights the clients of the JetStream API have, while security is on."""
    leaf: LeafConfig = LeafConfig()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if not self.servers:
            raise ValueError("servers must name at least one NATS server")
        if self.api_principal:
            try:
                check_principal(self.api_principal)
            except InvalidRequestError as error:
                raise ValueError(f"api_principal: {error.message}") from error
        return self


class IngestConfig(_Section):
    """Where acks may be sent, and the bounds on messages that wait for theirs."""

    ack_subjects: list[SubjectPattern] = ["_INBOX.>"]
    pending_acks_max: Annotated[int, Field(ge=1)] = 1_000_000
    uncommitted_bytes_max: Annotated[ByteSize, Field(ge=1, le=_BYTES_MAX)] = ByteSize(
        256 * 1024 * 1024
    )
    batch_bytes_max: Annotated[ByteSize, Field(ge=64 * 1024, le=PRODUCE_BYTES_MAX)] = ByteSize(
        PRODUCE_BYTES_MAX
    )
    """Of a batch that a producer sends to the node itself; NATS has its own max_payload."""


class LogConfig(_Section):
    segment_bytes: Annotated[ByteSize, Field(ge=64 * 1024, le=2 * 1024**3)] = ByteSize(
        256 * 1024**2
    )
    flush_interval_ms: Annotated[int, Field(ge=10, le=3_600_000)] = 1000
    scrub_bytes_per_second: Annotated[ByteSize, Field(ge=4096, le=_BYTES_MAX)] = ByteSize(1024**2)
    compaction_bytes_per_second: Annotated[ByteSize, Field(ge=64 * 1024, le=_BYTES_MAX)] = ByteSize(
        64 * 1024**2
    )
    disk_reserve_bytes: Annotated[ByteSize, Field(le=_BYTES_MAX)] = ByteSize(128 * 1024**2)
    """With less free space than this, appends are refused and /readyz says so."""


class LakeConfig(_Section):
    """The object store for old records."""

    url: str = ""
    """file:///path or s3://bucket/prefix. Empty: there is no lake."""
    endpoint: str = ""
    """Of the bucket's server; empty: Amazon's."""
    region: str = ""
    credentials_file: str = ""
    """For the bucket; empty: they come from the environment or from the machine's role."""
    cache_bytes: Annotated[ByteSize, Field(ge=16 * 1024**2, le=_BYTES_MAX)] = ByteSize(1024**3)
    upload_bytes_per_second: Annotated[ByteSize, Field(ge=64 * 1024, le=_BYTES_MAX)] = ByteSize(
        64 * 1024**2
    )
    timeout: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds that the copying of one object may take."""
    grace: Annotated[int, Field(ge=1, le=31_536_000)] = 86_400
    """Seconds until an object that no table needs is deleted. Twice `timeout` at least."""

    @model_validator(mode="after")
    def _names_a_store(self) -> Self:
        if self.grace < 2 * self.timeout:
            # **safety** Else an object could be deleted before its copy is committed: a sweep may
            # have seen it before, and the commit may take its time, too.
            raise ValueError("grace: it must be at least twice timeout")
        if self.url:
            try:
                check_url(self.url)
            except InvalidRequestError as error:
                raise ValueError(f"url: {error.message}") from error
            endpoint = urlsplit(self.endpoint)
            if self.endpoint and (endpoint.scheme not in ("http", "https") or "@" in self.endpoint):
                raise ValueError("endpoint: it is https://host:port, without credentials")
            if lacks_extra(self.url):
                raise ValueError(
                    "url: the lake needs packages that are not installed: "
                    + install_command("server", "lake")
                )
        return self


def _named(folder: object) -> object:
    """An empty name, perhaps of a variable that was not set, would be the current folder."""
    if folder == "":
        raise ValueError("it is empty: name a folder")
    return folder


class Config(BaseSettings):
    """The whole file. `load` makes it; `node` is this process's own entry."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    cluster: Annotated[str, Field(min_length=1, max_length=255)] = "jetstream"
    data: Annotated[Path, BeforeValidator(_named)] = Path("jetstream-data")
    nodes: Annotated[list[NodeConfig], Field(min_length=1)] = [NodeConfig(id=0)]
    join: list[Address] | Address = []
    """Raft ports of nodes of a running cluster: this node joins it. It lists only itself then."""
    voters: list[int] = []
    """The nodes that vote on metadata; empty: the first ones, an odd number. With its own id here a
    single node listens for others, which may join it."""
    credential: str = Field(default="", repr=False)
    """The secret by which nodes authenticate each other. Required with several nodes."""
    tls: TlsConfig | None = None
    insecure: bool = False
    """Allows listeners beyond loopback without TLS, or that let everybody in; and several nodes
    without a credential."""
    nats: NatsConfig = NatsConfig()
    security: SecurityConfig = SecurityConfig()
    limits: LimitsConfig = LimitsConfig()
    http: HttpConfig = HttpConfig()
    encryption: EncryptionConfig = EncryptionConfig()
    ingest: IngestConfig = IngestConfig()
    log: LogConfig = LogConfig()
    lake: LakeConfig = LakeConfig()
    tracing: TracingConfig = TracingConfig()

    @property
    def join_addresses(self) -> tuple[str, ...]:
        return (self.join,) if isinstance(self.join, str) else tuple(self.join)

    @property
    def is_alone(self) -> bool:
        """Whether there are no other nodes, and none may join. A single node that names itself in
        `voters` is open to others."""
        return len(self.nodes) == 1 and not self.join and not self.voters

    @property
    def voter_addresses(self) -> dict[int, str]:
        """The nodes that vote on metadata, with their Raft addresses; by default the first ones by
        id."""
        nodes = sorted(self.nodes, key=lambda node: node.id)
        if self.join and not self.voters:
            return {}
        chosen = self.voters or [node.id for node in nodes[: voter_count(len(nodes))]]
        return {node.id: node.raft.advertise for node in nodes if node.id in chosen}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    @model_validator(mode="after")
    def _nodes_can_live_together(self) -> Self:
        ids = [node.id for node in self.nodes]
        if len(set(ids)) != len(ids):
            raise ValueError("nodes: two nodes have the same id")
        for voter in self.voters:
            if voter not in ids or self.voters.count(voter) > 1:
                raise ValueError(f"voters: {voter} must be the id of one of the nodes, given once")
        listeners = [getattr(node, port).advertise for node in self.nodes for port in PORTS]
        for address in listeners:
            if listeners.count(address) > 1:
                raise ValueError(f"nodes: two ports are advertised as {address}")
        if self.join and (len(self.nodes) > 1 or self.voters):
            raise ValueError(
                "join: a node that joins lists only itself in nodes, and no voters: it asks who "
                "votes"
            )
        if not self.is_alone and self.tls is not None and self.tls.ca_file is None:
            raise ValueError(
                "tls.ca_file: needed with several nodes, which show certificates, and with "
                "`voters`, which lets others join"
            )
        has_known_clients = self.tls is not None and self.tls.client_auth == "required"
        if not self.is_alone and not (self.credential or self.insecure or has_known_clients):
            raise ValueError(
                "credential: needed with several nodes, so that they know each other, and with "
                "`voters`, which lets others join; set it (best "
                "by JETSTREAM_CREDENTIAL), or tls with client_auth: required, or insecure: true if "
                "the network is trusted"
            )
        if self.security.enabled and not self.credential:
            raise ValueError(
                "credential: needed with security, also on a single node: it distinguishes "
                "nodes from clients; set it (best by JETSTREAM_CREDENTIAL)"
            )
        asks_for_tokens = self.tls is not None and self.security.enabled
        may_listen_everywhere = self.insecure or has_known_clients or asks_for_tokens
        for node in self.nodes:
            for port in PORTS:
                host = split_address(getattr(node, port).listen)[0]
                if not (may_listen_everywhere or _is_loopback(host)):
                    raise ValueError(
                        f"nodes: node {node.id} listens for {port} on {host}, beyond loopback, "
                        "where anybody can connect; set tls, and in it client_auth: required or "
                        "beside it security.enabled, or insecure: true if the network is trusted"
                    )
        return self


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses duplicate keys: YAML would silently let the later one replace the earlier one. What
    YAML cannot make a value of is a YAMLError, too, with its place."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _values_in(node, {}) >= _VALUES_MAX:
            raise ConfigurationError(f"{_VALUES_MAX} values or more: do anchors repeat them?")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue  # Keys of the mapping may replace those that are merged.
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise ConstructorError(
                    None, None, "a list or a mapping as key", key_node.start_mark
                )
            if key in seen:
                raise ConfigurationError(f"{key}: given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"no valid {kind}", node.start_mark) from error


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values are in it, _VALUES_MAX at most; those of an anchor as often as it is named,
    and too many in one that contains itself."""
    if id(node) not in known:
        known[id(node)] = _VALUES_MAX
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            inside = chain.from_iterable(inside)
        count = 1 + sum(_values_in(each, known) for each in inside)
        known[id(node)] = min(count, _VALUES_MAX)
    return known[id(node)]


def load(
    path: Path | None,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Load the configuration from `path` (None: defaults), the environment, and `overrides`.

    overrides: top-level keys set by the command line, of the right types; they take precedence.
    For `nats` also a mapping with some keys of that section.
    Raises ConfigurationError.
    """
    values = {} if path is None else read(path)
    return check(values, path, overrides, environment)


def check(
    values: Mapping[str, Any],
    path: Path | None,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """`load`, for values that were read from `path`. Raises ConfigurationError."""
    _check_variables(environment)
    try:
        config = Config(**values)
    except ValidationError as error:
        raise ConfigurationError(one_line(error, Config, path, environment)) from error
    except ValueError as error:  # pydantic-settings: an environment variable that is not JSON
        raise ConfigurationError(_not_json(str(error))) from error
    changes = dict(overrides or {})
    nats = changes.get("nats")
    if isinstance(nats, Mapping):
        changes["nats"] = config.nats.model_copy(update=nats)
    return config.model_copy(update=changes)


def _not_json(message: str) -> str:
    """What pydantic-settings says of a section that an environment variable sets, for people."""
    section = re.search(r'field "(\w+)"', message)
    if section is None:
        return message.splitlines()[0]
    variable = f"{ENVIRONMENT_PREFIX}{section[1].upper()}"
    return f"environment variable {variable}: expected JSON; {variable}__KEY sets a single key"


def read(path: Path) -> dict[str, Any]:
    """The file as it is, with unique keys. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.load(text, Loader=_UniqueKeyLoader)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: lists or mappings too deep in each other") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigurationError(f"{path}: the file must be a mapping of keys to values")
    return values


def _check_variables(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES:
            continue
        if is_service_link(name, value):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).partition("__")[0].lower()
        if key not in Config.model_fields:
            known = [*map(variable_of, keys_of(Config)), *sorted(OTHER_VARIABLES)]
            raise ConfigurationError(
                f"{name}: unknown variable{did_you_mean(name, known)}; {ENVIRONMENT_PREFIX}* may "
                f"set {', '.join(Config.model_fields)}"
            )


def own_node(config: Config, node_id: int | None, environment: Mapping[str, str]) -> NodeConfig:
    """This process's entry in `nodes`: by argument, JETSTREAM_NODE_ID, host name, or the only one.

    Raises ConfigurationError when none fits.
    """
    if node_id is None and environment.get(NODE_ID_VARIABLE):
        text = environment[NODE_ID_VARIABLE]
        if not text.isdecimal() or len(text) > _DIGITS_MAX:
            raise ConfigurationError(f"{NODE_ID_VARIABLE}: {text!r} is not a node id")
        node_id = int(text)
    if node_id is not None:
        found = [node for node in config.nodes if node.id == node_id]
        if not found:
            raise ConfigurationError(f"nodes: no node with id {node_id} is listed")
        return found[0]
    if len(config.nodes) == 1:
        return config.nodes[0]
    host = socket.gethostname()
    found = [node for node in config.nodes if node.host == host]
    if len(found) != 1:
        raise ConfigurationError(
            f"nodes: cannot tell which node this is: {len(found)} have host {host!r}; "
            f"give --node-id or {NODE_ID_VARIABLE}"
        )
    return found[0]
