"""The `jetstream-server` command: options, logging, signals, exit codes.

Exit codes: 0 stopped cleanly; 1 the server could not start or failed; 2 wrong usage or
configuration.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from jetstream_protocol.version import VERSION
from jetstream_server.node.output import protect_announcements, protect_complaints
from jetstream_server.node.stop_signals import take_hang_ups

if TYPE_CHECKING:
    from jetstream_server.node.config import Config, NodeConfig

END_SECONDS = 5.0
"""How long a node that has stopped waits for its threads."""

# typer contains its own copy of click; older versions use click itself. This is the one in use.
_UsageError: Any = typer.BadParameter.__mro__[1]

command = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich shortens the names of options to fit its tables.
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command and exit."""
    protect_complaints()
    os.umask(0o077)  # What it writes, its children included, is for its user alone.
    try:
        code = command(standalone_mode=False)
    except _UsageError as error:
        message = error.format_message().rstrip(".")
        print(f"error: {message}. See: jetstream-server --help", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"jetstream-server {VERSION}")
        raise typer.Exit


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The cluster's YAML file, the same on every node.")
]
NodeNumber = Annotated[
    int | None,
    typer.Option(
        "--node-id",
        help="Which node of the file this is. Default: JETSTREAM_NODE_ID, host name.",
    ),
]
DataPath = Annotated[
    Path | None, typer.Option("--data", help="Data folder. Default: ./jetstream-data.")
]
DevFlag = Annotated[
    bool, typer.Option("--dev", help="One node on loopback with an embedded NATS server.")
]
PortBase = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65531,
        help="Ports: gRPC N, data N+1, Raft N+2, HTTP N+3, embedded NATS N+4. "
        "Default: 9292 to 9295, NATS 4222.",
    ),
]
NatsUrl = Annotated[
    str | None, typer.Option(help="Use this NATS server instead of an embedded one.")
]
NodesHere = Annotated[
    int | None,
    typer.Option(
        "--nodes-here",
        min=1,
        max=100,
        help="Run this many nodes on each machine of the file, ports 10 apart, and start again "
        "those that end. See docs/operations/sizing.md.",
    ),
]
AcceptVoters = Annotated[
    bool,
    typer.Option(
        "--accept-voters",
        help="For one start, on every node, after the voters in the file have changed: see "
        "docs/operations/cluster.md. Can lose metadata.",
    ),
]
CheckConfig = Annotated[
    bool,
    typer.Option("--check-config", help="Only say whether the configuration can be used."),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        help="debug, info, warning or error. Default: info; --dev in a terminal: warning."
    ),
]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
]


@command.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    config: ConfigFile = None,
    node_id: NodeNumber = None,
    dev: DevFlag = False,
    data: DataPath = None,
    port_base: PortBase = None,
    nats: NatsUrl = None,
    nodes_here: NodesHere = None,
    accept_voters: AcceptVoters = False,
    check_config: CheckConfig = False,
    log_level: LogLevel = None,
    _version: Version = False,
) -> None:
    """Run one Jetstream node until SIGTERM or Ctrl-C.

    A first try:  jetstream-server --dev

    A cluster's node:  jetstream-server --config config/cluster.yaml --node-id 0

    A machine with many cores:  jetstream-server --config config/cluster.yaml --nodes-here 4
    """
    if context.invoked_subcommand is not None:
        take_hang_ups()
        return
    protect_announcements()
    # gRPC's core writes clients' bytes to standard error. Set this before it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from jetstream_server.node.config import check_nats_url

    if not dev and config is None:
        _fail("give --config cluster.yaml, or --dev for a single node to try things on", 2)
    if port_base is not None and not dev:
        _fail("--port-base goes with --dev; with --config the file says where each node listens", 2)
    try:
        if nats is not None:
            check_nats_url(nats)
    except ValueError as error:
        _fail(f"--nats: {error}", 2)
    overrides = _overrides(dev, data, port_base, nats)
    if nodes_here is not None:
        if config is None or dev or accept_voters:
            _fail("--nodes-here goes with --config, without --dev and --accept-voters", 2)
        options = [] if nats is None else ["--nats", nats]
        options += [] if log_level is None else ["--log-level", log_level]
        _set_up_logs(log_level, dev)
        _run_nodes_here(config, overrides, node_id, nodes_here, check_config, options)
        return
    settings, node = _configured(config, overrides, node_id)
    if check_config:
        _check_files(settings, node)
        return
    gc.disable()  # It would look for garbage all the time, and modules are none.
    from jetstream_server.node import app
    from jetstream_server.node.memory import keep_few_arenas
    from jetstream_server.node.run_state import CannotListenError, StartError

    gc.enable()

    keep_few_arenas()
    for_people = _set_up_logs(log_level, dev)
    try:
        with asyncio.Runner(loop_factory=app.new_event_loop) as runner:
            code = 1
            try:
                runner.run(app.serve(settings, node, accept_voters, for_people))
                code = 0
            finally:
                _end_soon(code)
    except CannotListenError as error:
        _fail(f"{error}; --port-base gives this server other ports" if dev else str(error), 1)
    except StartError as error:
        _fail(str(error), 1)


def _end_soon(code: int) -> None:
    """End the process in END_SECONDS, if threads that hang at a store or mount keep it then."""
    timer = threading.Timer(END_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _run_nodes_here(
    path: Path,
    overrides: dict[str, object],
    machine: int | None,
    count: int,
    check_only: bool,
    options: list[str],
) -> None:
    """options: for each node."""
    from jetstream_server.node import nodes_here
    from jetstream_server.node.config import ConfigurationError

    try:
        here = nodes_here.configured(path, overrides, machine, count)
    except ConfigurationError as error:
        _fail(str(error), 2)
    if check_only:
        for node in here.nodes:
            _check_files(here.config, node)
        return
    try:
        is_clean = asyncio.run(nodes_here.supervise(here, options))
    except OSError as error:
        _fail(f"cannot write {error.filename}: {error.strerror}", 1)
    if not is_clean:
        _fail("not every node has stopped cleanly; its log says why", 1)


def _set_up_logs(level: str | None, dev: bool) -> bool:
    """Set up logs. Returns whether a person watches a trial: warnings and a banner suffice then."""
    from jetstream_server.node import logs

    for_people = dev and level is None and sys.stdout.isatty() and sys.stderr.isatty()
    if not logs.configure(level or ("warning" if for_people else "info")):
        _fail(f"--log-level: {level!r} is not one of {', '.join(logs.LEVELS)}", 2)
    return for_people


@command.command()
def unsafe_recover(
    config: ConfigFile = None,
    node_id: NodeNumber = None,
    data: DataPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would do and cost.")
    ] = False,
) -> None:
    """Go on without most voters, lost for good.

    First stop the node, and list the remaining voters in the file under `voters`; then run this on
    every node that stays. It says what may be lost, and asks. See
    docs/operations/lost_quorum.md.

    Example:  jetstream-server unsafe-recover --config config/cluster.yaml --node-id 2
    """
    from jetstream_server.node import unsafe_recover

    if config is None:
        _fail("give --config cluster.yaml", 2)
    settings, node = _configured(config, _overrides(False, data, None, None), node_id)
    try:
        unsafe_recover.unsafe_recover(settings, node, yes=yes, dry_run=dry_run)
    except unsafe_recover.Refused as error:
        _fail(str(error), error.code)
    except typer.Abort:
        _fail("nothing was changed", 1)


@command.command()
def token(
    config: ConfigFile = None,
    node_id: NodeNumber = None,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Make the first administrator.")
    ] = False,
    principal: Annotated[
        str, typer.Option(help="Who the administrator is: user:NAME.")
    ] = "user:admin",
    expires_days: Annotated[
        int, typer.Option(min=1, max=3650, help="For how many days the token holds.")
    ] = 90,
    port_base: Annotated[
        int | None,
        typer.Option(min=1, max=65531, help="Of a server with --dev: its --port-base."),
    ] = None,
) -> None:
    """Make the first administrator's token, and print it, once.

    Run it on the machine of a node that runs, with the node's configuration, which says where the
    node listens (by default on port 9292). It is refused once there is an administrator; further
    tokens: jetstream token create.

    Example:  jetstream-server token --bootstrap --config config/cluster.yaml --node-id 0
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from jetstream_server.node.bootstrap import Refused, security_is_off
    from jetstream_server.node.bootstrap import bootstrap as make_first

    if not bootstrap:
        _fail("say --bootstrap; other tokens: jetstream token create", 2)
    if port_base is not None and config is not None:
        _fail("--port-base goes without --config: the file says where each node listens", 2)
    settings, node = _configured(config, _overrides(False, None, port_base, None), node_id)
    try:
        made = make_first(settings, node, principal, expires_days * 24 * 3600 * 1_000_000)
    except Refused as error:
        _fail(str(error), 1)
    print(made, flush=True)
    lines = [f"{principal} made at {node.grpc.advertise}"]
    if security_is_off(settings, node, made):
        lines.append(f"warning: security is off at {node.grpc.advertise}: it ignores tokens")
        if config is None and port_base is None and os.environ.get("JETSTREAM_SERVERS"):
            lines.append("JETSTREAM_SERVERS is not read here: say --config or --port-base")
    print("\n".join(lines), file=sys.stderr)


def _configured(
    path: Path | None, overrides: dict[str, object], node_id: int | None
) -> tuple[Config, NodeConfig]:
    """The configuration, and the entry of this node in it."""
    from jetstream_server.node.config import ConfigurationError, load, own_node

    try:
        settings = load(path, overrides)
        return settings, own_node(settings, node_id, os.environ)
    except ConfigurationError as error:
        _fail(str(error), 2)


def _check_files(settings: Config, node: NodeConfig) -> None:
    """Check that files named in the configuration can be read, and report success."""
    from jetstream_protocol.errors import PreconditionFailedError, UnauthenticatedError
    from jetstream_server.node.config import ConfigurationError
    from jetstream_server.node.encryption_options import keys_of
    from jetstream_server.node.nats_options import link_options
    from jetstream_server.node.own_certificates import certificates_of

    try:
        link_options(settings.nats, node.id).credentials.connect_fields("nonce")
        certificates_of(settings, node)
        keys_of(settings)
    except (ConfigurationError, PreconditionFailedError, UnauthenticatedError) as error:
        _fail(str(error), 2)
    print(f"the configuration can be used: this is node {node.id} of {len(settings.nodes)}")


def _overrides(
    dev: bool, data: Path | None, port_base: int | None, nats: str | None
) -> dict[str, object]:
    """The settings of the command line, as top-level keys of the configuration."""
    from jetstream_server.node.config import NatsConfig, NodeConfig

    overrides: dict[str, object] = {}
    if data is not None:
        overrides["data"] = data
    if port_base is not None:
        overrides["nodes"] = [NodeConfig.on_ports(0, port_base)]
    if nats is not None:
        overrides["nats"] = {"servers": [nats], "embedded": False}  # Its login and TLS stay.
    elif dev:
        listen = {} if port_base is None else {"embedded_listen": f"127.0.0.1:{port_base + 4}"}
        # Logins and TLS are for other servers; the JetStream API is for this one, too.
        embedded = NatsConfig(embedded=True, **listen)  # type: ignore[arg-type]
        fields = NatsConfig.model_fields.keys() - {"api_domain", "api_principal", "leaf"}
        overrides["nats"] = {name: getattr(embedded, name) for name in fields}
    return overrides
