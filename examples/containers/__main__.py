"""`scripts/containers`: see `podman.py` and `compose.py` for how."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from examples.containers.compose import Compose
from examples.containers.podman import BASE, IMAGE, TREE, Podman, missing_programs

NODES = ["node0", "node1", "node2"]
MONITORING = ["prometheus", "grafana"]
SERVERS = "node0:9292,node1:9302,node2:9312"
SIZE_MB_MAX = 250
FOLDER_CHARACTERS_MAX = 46
"""podman takes at most 50 for the folder "run" in it."""
READY_SECONDS = 90.0
LOAD_SECONDS = 30.0

Folder = Annotated[
    Path, typer.Option(help="Where images and containers are kept; may grow to several GB.")
]
DEFAULT = Path("/tmp/jetstream-containers")

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The container image, built and run for real."
)


def _podman(folder: Path) -> Podman:
    missing = missing_programs()
    if missing:
        print(f"error: not installed: {', '.join(missing)} (apt-get install)", file=sys.stderr)
        raise typer.Exit(2)
    if len(str(folder)) > FOLDER_CHARACTERS_MAX:
        print(f"error: podman needs a shorter folder than {folder}", file=sys.stderr)
        raise typer.Exit(2)
    os.environ.setdefault("JETSTREAM_CREDENTIAL", secrets.token_hex(16))
    return Podman(folder)


@app.command()
def base(folder: Folder = DEFAULT) -> None:
    """Make what the Dockerfile's FROM names, by debootstrap."""
    _podman(folder).make_base()


@app.command()
def build(folder: Folder = DEFAULT) -> None:
    """Build the image; fails when it is larger than it may be."""
    podman = _podman(folder)
    if not podman.has(BASE):
        podman.make_base()
    podman.build()
    size = podman.size_mb(IMAGE)
    print(f"✓ image  {size:.0f} MB with its base of {podman.size_mb(BASE):.0f} MB")
    if size > SIZE_MB_MAX:
        raise typer.Exit(1)


@app.command()
def up(folder: Folder = DEFAULT) -> None:
    """Start three nodes and NATS, and wait until their health checks pass."""
    podman = _podman(folder)
    compose = Compose(podman)
    compose.install()
    plain, monitored = compose.services(), compose.services("--profile", "monitoring")
    if monitored != [*plain, *MONITORING]:
        print(f"error: the profile monitoring has {monitored}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"✓ profiles  {', '.join(plain)}; with monitoring also {', '.join(MONITORING)}")
    compose.write()
    compose("down", "--volumes")
    if taken := compose.ports_taken():  # The health checks would ask the wrong process.
        print(f"error: something listens on {', '.join(map(str, taken))}", file=sys.stderr)
        raise typer.Exit(1)
    begun = time.monotonic()
    compose("up", "--detach")
    for name in NODES:
        _wait(lambda name=name: podman.is_healthy(name), f"{name} is healthy")
    print(f"✓ up  three nodes and NATS, healthy after {time.monotonic() - begun:.1f} s")


@app.command()
def check(folder: Folder = DEFAULT) -> None:
    """Kill a node under load and freeze another; nothing acknowledged is lost, and it is seen."""
    podman = _podman(folder)
    compose = Compose(podman)
    errors = (folder / "load.log").open("w")
    load = subprocess.Popen(
        podman.command(
            "run", "--rm", "--name", "load", *podman.network(),
            "--volume", f"{TREE / 'examples' / 'containers'}:/load:ro",
            "--entrypoint", "python", IMAGE, "/load/load.py", SERVERS, str(LOAD_SECONDS),
        ),
        stdout=subprocess.PIPE, stderr=errors, text=True,
    )  # fmt: skip
    assert load.stdout is not None
    if load.stdout.readline() != "publishing\n":
        raise typer.Exit(1)
    time.sleep(2)
    killed = _leader(compose)
    compose("kill", "--signal", "KILL", killed)
    print(f"● kill -9  {killed}, which leads")
    time.sleep(5)
    compose("start", killed)
    _wait(lambda: podman.is_healthy(killed), f"{killed} is healthy again")
    # Not the one that has just started: for half a minute its failures do not count.
    frozen = next(name for name in NODES if name not in (killed, _leader(compose)))
    podman.signal_server(frozen, signal.SIGSTOP)
    _wait(lambda: podman.is_unhealthy(frozen), f"{frozen} is unhealthy")
    podman.signal_server(frozen, signal.SIGCONT)
    print(f"✓ frozen  {frozen} is unhealthy")
    _wait(lambda: podman.is_healthy(frozen), f"{frozen} is healthy again")
    said = json.loads(load.stdout.readline() or "{}")
    load.wait(60)
    print(f"✓ load  {said}")
    begun = time.monotonic()
    compose("stop", *NODES)
    seconds = time.monotonic() - begun
    print(f"✓ stopped  three nodes, by SIGTERM, in {seconds:.1f} s")
    if said.get("lost") != 0 or said.get("acknowledged", 0) < 100:
        raise typer.Exit(1)
    print("✓ nothing acknowledged was lost")


@app.command()
def down(folder: Folder = DEFAULT) -> None:
    """Remove the containers and their volumes. The images stay."""
    podman = _podman(folder)
    podman("rm", "--force", "--ignore", "load")
    compose = Compose(podman)
    compose.install()
    compose.write()
    compose("down", "--volumes")


@app.command("all")
def all_(folder: Folder = DEFAULT) -> None:
    """Everything: build, up, check, down."""
    build(folder)
    try:
        up(folder)
        check(folder)
    finally:
        down(folder)


def _leader(compose: Compose) -> str:
    """The service that leads the stream of the load."""
    said = compose(
        "--profile", "tools", "run", "--rm", "cli", "stream", "describe", "containers", "--json"
    )
    return NODES[int(json.loads(said)["leader"])]


def _wait(holds: object, what: str) -> None:
    assert callable(holds)
    ends = time.monotonic() + READY_SECONDS
    while not holds():
        if time.monotonic() > ends:
            print(f"error: not so in time: {what}", file=sys.stderr)
            raise typer.Exit(1)
        time.sleep(0.5)


if __name__ == "__main__":
    app()
