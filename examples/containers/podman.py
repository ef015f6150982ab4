"""buildah and podman with a storage of their own, where neither Docker nor a registry is at hand.

What the images of a registry would be is made here: `python:3.11-slim` by debootstrap, and the
NATS image from the binary in our own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import yaml

TREE = Path(__file__).resolve().parents[2]
BASE = "docker.io/library/python:3.11-slim"
NATS = "docker.io/library/nats:2-alpine"
IMAGE = "localhost/jetstream-log"
PROGRAMS = ("buildah", "podman", "runc", "debootstrap", "catatonit")
"""The last is the init process of `podman run --init`: podman only recommends it."""
SUITE = "bookworm"
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
"""What images of Debian's "slim" kind leave out, too."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# The defaults are beyond what an unprivileged parent may give.
_LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=32768:32768")


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]


_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Podman:
    """folder: holds images, containers and what they are made of; nothing elsewhere is touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._storage = [
            "--root", str(folder / "storage"), "--runroot", str(folder / "run"),
            "--storage-driver", "vfs",
        ]  # fmt: skip
        self._environment = {**os.environ, "PATH": _PATH}

    def command(self, *arguments: str) -> list[str]:
        """podman with this storage."""
        limits = ["--cgroup-manager=cgroupfs", "--runtime", "runc"]
        return ["podman", *self._storage, *limits, *arguments]

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman; what it prints is in the result."""
        return self._run(self.command(*arguments), check=check, capture=True)

    def _run(
        self, command: list[str], *, check: bool = True, capture: bool = False, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self._environment, capture_output=capture, text=True, input=text,
            cwd=TREE,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr or ''}")
        return done

    def has(self, image: str) -> bool:
        return self("image", "exists", image, check=False).returncode == 0

    def size_mb(self, image: str) -> float:
        """All of its layers, in megabytes."""
        return int(self("image", "inspect", "--format", "{{.Size}}", image).stdout) / 1e6

    # Images.

    def make_base(self) -> None:
        """What the Dockerfile's FROM names: Debian with Python, its headers, and `python`."""
        root = self.folder / "base"
        if root.exists():
            shutil.rmtree(root)
        packages = "python3,python3-venv,ca-certificates"
        self._run(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root)])
        self._add_headers(root)
        for left_out in (*_LEFT_OUT, "var/lib/apt/lists", "var/cache/apt"):
            shutil.rmtree(root / left_out, ignore_errors=True)
        (root / "var/lib/apt/lists/partial").mkdir(parents=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        (root / "usr/bin/python").symlink_to("python3")
        if _CERTIFICATES.exists():  # Whom this machine trusts, the build trusts.
            shutil.copy(_CERTIFICATES, root / str(_CERTIFICATES)[1:])
            (root / "etc/pip.conf").write_text(f"[global]\ncert = {_CERTIFICATES}\n")
        archive = self.folder / "base.tar"
        self._run(["tar", "-C", str(root), "-cf", str(archive), "."])
        self("import", str(archive), BASE)
        archive.unlink()
        shutil.rmtree(root)

    def _add_headers(self, root: Path) -> None:
        """Python's headers, of the package that would bring a compiler with it."""
        version = next((root / "usr/lib").glob("python3.[0-9]*")).name
        downloads = self.folder / "downloads"
        downloads.mkdir(exist_ok=True)
        subprocess.run(["apt-get", "download", f"lib{version}-dev"], cwd=downloads, check=True)
        for package in downloads.glob("*.deb"):
            files = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True
            ).stdout
            subprocess.run(
                ["tar", "-C", str(root), "-x", "--wildcards", "./usr/include/*"],
                input=files, check=True,
            )  # fmt: skip

    def build(self) -> None:
        """The image of the Dockerfile, and the NATS image that the compose file names."""
        self._buildah("--tag", IMAGE, ".")
        recipe = self.folder / "nats.containerfile"
        recipe.write_text(f'FROM {IMAGE}\nUSER root\nENTRYPOINT ["nats-server"]\nCMD []\n')
        self._buildah("--file", str(recipe), "--tag", NATS, str(self.folder / "run"))

    def _buildah(self, *arguments: str) -> None:
        # Only Docker's format of images has health checks.
        self._run(
            [
                "buildah", *self._storage, "build", "--format", "docker", "--isolation", "chroot",
                "--pull-never", "--layers=false", *arguments,
            ]
        )  # fmt: skip

    # Containers.

    def network(self) -> list[str]:
        """The host's network, in which the services' names are known, and limits."""
        compose = yaml.safe_load((TREE / "docker-compose.yml").read_text())
        hosts = [f"--add-host={host}:127.0.0.1" for host in compose["services"]]
        return ["--network", "host", *_LIMITS, *hosts]

    def is_healthy(self, name: str) -> bool:
        """By the image's own health check, run now: without systemd nobody else runs it."""
        return self("healthcheck", "run", name, check=False).returncode == 0

    def is_unhealthy(self, name: str) -> bool:
        """Whether podman says so, once the check has failed as often as the image allows."""
        self("healthcheck", "run", name, check=False)
        status = self("inspect", "--format", "{{.State.Health.Status}}", name).stdout
        return status.strip() == "unhealthy"

    def signal_server(self, name: str, number: signal.Signals) -> None:
        """Signal the server itself: the container's first process is its init."""
        init = self("inspect", "--format", "{{.State.Pid}}", name).stdout.strip()
        (server,) = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        os.kill(int(server), number)
