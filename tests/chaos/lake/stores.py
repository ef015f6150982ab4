"""The stores of a campaign, and what goes wrong in them.

A bucket is moto's, in this process, or that of a versitygw, which is a process that can be killed.
Nodes reach it by a proxy that refuses, waits, cuts and fails as it is told, and knows at which step
of an upload a request is. A folder is on a file system of its own, which can be full.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from email.message import Message
from pathlib import Path
from typing import Any, Final

from examples.cluster.ports import is_free
from jetstream_server.lake.stores import Store, StoreOptions, open_store
from tests.support.s3 import SECRET, FaultyServer, s3_server
from tests.support.server import free_port_base
from tests.support.small_disk import SmallDisk, missing

BUCKET: Final = "lake"
DISK_BYTES: Final = 1 << 30
STEPS: Final = {
    "object": ("PUT", "/data/"),
    "object read back": ("GET", "/data/"),
    "manifest": ("PUT", ".avro"),
    "table": ("PUT", ".metadata.json"),
    "table read back": ("GET", ".metadata.json"),
    "mark": ("PUT", "/committed/"),
}
"""Of an upload: the requests that are made, in this order, all but the last before the commit."""
FAULTS: Final = {
    "gone": "gone",
    "hangs": "slow",
    "slow": "late",
    "503": "status 503",
    "full": "status 507",
    "cut": "cut",
    "fails after": "fail after",
}


class LakeStore(ABC):
    """faults: what can go wrong here. Call `close`."""

    faults: tuple[str, ...]
    has_steps = False

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Of the nodes."""

    @abstractmethod
    def open(self) -> Store:
        """As it is, without faults."""

    @abstractmethod
    def strike(self, fault: str) -> None: ...

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Folder(LakeStore):
    """On a disk in memory, if one can be mounted; otherwise it is never full."""

    def __init__(self, path: Path) -> None:
        self.has_disk = not missing()
        self.faults = ("gone", "full") if self.has_disk else ("gone",)
        self._disk = SmallDisk(path, DISK_BYTES) if self.has_disk else None
        self._folder, self._aside = path / "lake", path / "aside"
        self._folder.mkdir(parents=True)

    @property
    def settings(self) -> dict[str, Any]:
        return {"url": self._folder.as_uri()}

    def open(self) -> Store:
        return open_store(StoreOptions(self._folder.as_uri()))

    def strike(self, fault: str) -> None:
        if fault == "gone":
            self._folder.rename(self._aside)
        elif self._disk is not None:
            self._disk.fill()

    def heal(self) -> None:
        if self._aside.exists():
            self._aside.rename(self._folder)
        if self._disk is not None:
            self._disk.empty()

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()


class Bucket(LakeStore):
    """moto's."""

    faults = (*FAULTS, "revoked")
    has_steps = True

    def __init__(self, folder: Path) -> None:
        self._ending = ExitStack()
        self._credentials = folder / "credentials"
        self._keys = 0
        self._behind = self._start(folder)
        self.proxy = Proxy(self._behind)
        thread = threading.Thread(target=self.proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self._ending.callback(self.proxy.server_close)
        self._ending.callback(self.proxy.shutdown)
        self._give_key()

    def _start(self, folder: Path) -> str:
        return self._ending.enter_context(s3_server(BUCKET))

    def _give_key(self) -> None:
        """The nodes' credentials from now on; those of before are revoked."""
        self._keys += 1
        self.proxy.key = self._key_of(self._keys)
        self._credentials.write_text(
            f"[default]\naws_access_key_id = {self.proxy.key}\naws_secret_access_key = {SECRET}\n"
        )

    def _key_of(self, number: int) -> str:
        return f"AKIDCHAOS{number:06}"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "url": f"s3://{BUCKET}/chaos",
            "endpoint": self.proxy.address,
            "region": "us-east-1",
            "credentials_file": str(self._credentials),
        }

    def open(self) -> Store:
        settings = self.settings | {"endpoint": self._behind}
        return open_store(StoreOptions(**settings))

    def strike(self, fault: str) -> None:
        if fault == "revoked":
            self.proxy.key = "another"
        else:
            self.proxy.fault = FAULTS[fault]

    def heal(self) -> None:
        self.proxy.heal()
        if self.proxy.key == "another":
            self._give_key()

    def close(self) -> None:
        self.proxy.heal()
        self._ending.close()


class Gateway(Bucket):
    """A versitygw's: its objects are files, and outlive it. It has one key for ever."""

    faults = (*FAULTS, "killed")
    PROGRAM: Final = "versitygw"

    def _start(self, folder: Path) -> str:
        self._port = free_port_base(1)
        self._objects = folder / "objects"
        (self._objects / BUCKET).mkdir(parents=True)
        self._log = folder / "versitygw.log"
        self._run()
        self._ending.callback(self._kill)
        return f"http://127.0.0.1:{self._port}"

    def _key_of(self, number: int) -> str:
        return "AKIDCHAOS"

    def _run(self) -> None:
        environment = os.environ | {
            "ROOT_ACCESS_KEY": self._key_of(0), "ROOT_SECRET_KEY": SECRET,
        }  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.PROGRAM, "--port", f"127.0.0.1:{self._port}", "posix", str(self._objects)],
                env=environment, stdout=log, stderr=log,
            )  # fmt: skip

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def strike(self, fault: str) -> None:
        if fault == "killed":
            self._kill()
        else:
            super().strike(fault)

    def heal(self) -> None:
        super().heal()
        if self._process.poll() is not None and is_free("127.0.0.1", self._port):
            self._run()


class Proxy(FaultyServer):
    """key: of the credentials that count. `arm` it for a step of an upload."""

    def __init__(self, behind: str) -> None:
        super().__init__(behind)
        self.key = ""
        self.says = "<Error><Code>AsTheTestSays</Code></Error>"
        self._armed: tuple[str, bool, Callable[[], None]] | None = None
        self._lock = threading.Lock()

    def arm(self, step: str, is_done: bool, strike: Callable[[], None]) -> None:
        """Call `strike` at the next request of that step: once it is done, or before."""
        self._armed = step, is_done, strike

    @property
    def is_armed(self) -> bool:
        return self._armed is not None

    def heal(self) -> None:
        self._armed = None
        self.fault = ""
        self.released.set()
        self.released = threading.Event()

    def meets(self, command: str, path: str, headers: Message) -> str:
        if f"Credential={self.key}/" not in headers.get("Authorization", ""):
            return "status 403"
        with self._lock:
            armed = self._armed
            if armed is None:
                return self.fault
            wanted, part = STEPS[armed[0]]
            if command != wanted or part not in path:
                return self.fault
            if armed[1]:
                return "gone after"
            self._armed = None
        armed[2]()
        return "gone"

    def has_passed(self) -> None:
        with self._lock:
            armed, self._armed = self._armed, None
        if armed is not None:
            armed[2]()


KINDS: Final[dict[str, type[Folder] | type[Bucket]]] = {
    "moto": Bucket,
    "versitygw": Gateway,
    "folder": Folder,
}


def why_not(kind: str) -> str:
    """Why there is no such store here; "": there is one."""
    if kind == "versitygw" and shutil.which(Gateway.PROGRAM) is None:
        return "versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw"
    return ""
