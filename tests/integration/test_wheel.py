"""The wheels: what they hold, how they are named, how they serve, and what the SDK brings along."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution, packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jetstream_client import Client
from jetstream_protocol.extras import install_command
from tests.support.cluster import PATIENCE_SECONDS
from tests.support.server import ServerProcess

TREE = Path(__file__).resolve().parents[2]
SDK_BYTES_MAX = 42_000_000  # Bytecode, which is not counted, makes it a fifth more: 60 MB at most.
PACKAGES = (
    "jetstream_client",
    "jetstream_command",
    "jetstream_protocol",
    "jetstream_server",
    "pyspark_jetstream",
)


EXTENSIONS = [
    "jetstream_protocol/_murmur2.abi3.so",
    "jetstream_protocol/_slices.abi3.so",
    "jetstream_protocol/_typed_json.abi3.so",
    "jetstream_server/ingest/nats/_columns.abi3.so",
    "jetstream_server/jetstream_api/_delivered.abi3.so",
]
PLATFORM = f"manylinux_2_17_{platform.machine()}"
CC = shutil.which("cc") if os.environ.get("TEST_WHEELS") else None
"""To compile takes a third of a minute: `scripts/environment` does it, too."""
needs_a_compiler = pytest.mark.skipif(
    CC is None, reason="long, with a C compiler: scripts/test all sets TEST_WHEELS"
)


def make_wheel(folder: Path, **environment: str) -> zipfile.ZipFile:
    """What `pip wheel` makes of the sources that are committed."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", TREE, source], check=True)
    subprocess.run(
        [*command, "--no-deps", "--wheel-dir", folder, source],
        env={**os.environ, **environment},
        check=True,
    )
    (found,) = folder.glob("*.whl")
    return zipfile.ZipFile(found)


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """As it is made where there is no compiler."""
    return make_wheel(tmp_path_factory.mktemp("plain"), CC="false")


@pytest.fixture(scope="module")
def wheel(
    plain_wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory
) -> zipfile.ZipFile:
    """As scripts/wheels has it made, but by this machine's compiler, if it is to be used."""
    if CC is None:
        return plain_wheel
    folder = tmp_path_factory.mktemp("wheel")
    return make_wheel(folder, JETSTREAM_WHEEL_PLATFORM=PLATFORM, CC=CC)


def tags(wheel: zipfile.ZipFile) -> list[str]:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    found = re.findall("^Tag: (.*)$", wheel.read(name).decode(), re.MULTILINE)
    assert str(wheel.filename).endswith(f"-{found[0]}.whl")
    return found


def extensions(wheel: zipfile.ZipFile) -> list[str]:
    return sorted(name for name in wheel.namelist() if ".so" in name)


def machine_of(program: bytes) -> bytes:
    """What a program in ELF is for: its field e_machine."""
    assert program[:4] == b"\x7fELF"
    return program[18:20]


@needs_a_compiler
def test_a_wheel_for_a_platform_serves_every_python_there(wheel: zipfile.ZipFile) -> None:
    assert tags(wheel) == [f"cp311-abi3-{PLATFORM}"]
    assert extensions(wheel) == EXTENSIONS
    with open(sys.executable, "rb") as file:
        here = machine_of(file.read(20))
    assert {machine_of(wheel.read(name)) for name in EXTENSIONS} == {here}


def test_without_a_compiler_the_wheel_is_plain_python(plain_wheel: zipfile.ZipFile) -> None:
    assert tags(plain_wheel) == ["py3-none-any"]
    assert extensions(plain_wheel) == []


def test_the_wheel_holds_types_protocol_and_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    for path in (TREE / "proto").rglob("*.proto"):
        assert f"jetstream_protocol/{path.relative_to(TREE)}" in names
    assert any(re.fullmatch(r"[^/]*\.dist-info/licenses/LICENSE", name) for name in names)


def test_the_readme_of_the_wheel_links_to_no_file_beside_it(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    readme = wheel.read(name).decode().partition("\n\n")[2]
    assert "Ten minutes with Jetstream (`docs/tutorial.md`)" in readme
    assert [link for link in re.findall(r"\]\(([^)]+)\)", readme) if ":" not in link] == []


class FromWheel(ServerProcess):
    """A server whose packages are the wheel's, laid out in a folder: the checkout is not used."""

    site = Path()

    def command(self) -> list[str]:
        arguments = super().command()[3:]
        program = (
            f"import sys; sys.path.insert(0, {str(self.site)!r}); import jetstream_server; "
            f"assert jetstream_server.__file__.startswith({str(self.site)!r}); "
            "from jetstream_command import server; server()"
        )
        return [sys.executable, "-P", "-c", program, *arguments]


@contextmanager
def serving(wheel: zipfile.ZipFile, folder: Path) -> Iterator[FromWheel]:
    wheel.extractall(folder / "site")
    server = FromWheel(folder / "data")
    server.site = folder / "site"
    server.start()
    try:
        yield server
    finally:
        server.kill()


def assert_it_stores(server: ServerProcess, form: str) -> None:
    """form: "compiled" or "python", as the server says it in its log and in `/metrics`."""
    with urllib.request.urlopen(f"{server.http}/metrics") as answer:
        labels = f'ingest="{form}",version="{version("jetstream-log")}"'
        assert f"jetstream_build_info{{{labels}}}" in answer.read().decode()
    (line,) = (line for line in server.log_text.splitlines() if '"ingest_form"' in line)
    said = json.loads(line)
    assert (said["form"], said["reason"] != "") == (form, form == "python")
    with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
        client.create_stream("orders", "orders.>")
        client.publish("orders.eu", b"hello", key=b"42")
        assert [each.value for each in client.fetch("orders")] == [b"hello"]


def test_a_server_from_the_wheel_alone_serves_everything(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    with serving(wheel, tmp_path) as server:
        console = TREE / "src" / "jetstream_server" / "serving" / "http" / "console_files"
        files = [path.name for path in console.iterdir() if path.suffix != ".html"]
        assert "console.js" in files
        for path in ("", *files, "healthz", "readyz", "api/v1/cluster"):
            with urllib.request.urlopen(f"{server.http}/{path}") as answer:
                assert answer.read(), path
        assert_it_stores(server, "compiled" if extensions(wheel) else "python")


def test_a_server_without_the_compiled_parts_serves_and_says_so(
    plain_wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    with serving(plain_wheel, tmp_path) as server:
        assert_it_stores(server, "python")


def needed(lines: list[str], found: set[str]) -> set[str]:
    """The distributions that requirements bring, without extras."""
    for line in lines:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in found:
            found.add(requirement.name)
            needed(requires(requirement.name) or [], found)
    return found


def test_the_sdk_alone_is_small_and_has_no_command_line() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    found = needed(project["dependencies"], set())
    assert not {"typer", "rich", "pygments", "pyarrow", "duckdb", "pyspark"} & found
    size = sum(
        Path(str(file.locate())).stat().st_size
        for name in found
        for file in distribution(name).files or ()
        if file.suffix != ".pyc" and Path(str(file.locate())).is_file()
    )
    sources = [*(TREE / "src").rglob("*.py"), *(TREE / "spark_connector").rglob("*.py")]
    size += sum(path.stat().st_size for path in sources)
    assert size < SDK_BYTES_MAX, f"{size:,} bytes in {sorted(found)}"


@pytest.mark.parametrize(
    ("command", "extra"), [("client", "cli"), ("server", "server")], ids=["client", "server"]
)
def test_without_its_extra_a_command_says_what_to_install(
    tmp_path: Path, command: str, extra: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'typer' else find(name, *more)\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sitecustomize; " + (
        f"from jetstream_command import {command}; {command}()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"  {install_command(extra)}"
    assert done.stderr.count("\n") == 2


def test_the_extra_sql_is_all_that_a_query_needs(tmp_path: Path) -> None:
    """DuckDB imports NumPy only where a query calls a function of ours."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    there = needed([*project["dependencies"], *extras["cli"], *extras["sql"]], set())
    names = {re.sub(r"[-_.]+", "-", each).lower() for each in there}
    absent = {
        top
        for top, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", each).lower() for each in owners} & names
    } - {"jetstream_client", "jetstream_protocol"}
    program = (
        "import sys\n"
        f"absent = {sorted(absent)!r}\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in absent:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "from jetstream_client.sql.query import Query\n"
        "class Streams:\n"
        "    def list_streams(self, *, internal=False): return []\n"
        "with Query(Streams(), 'select 1 as one where exists(from range(1))').answer() as answer:\n"
        "    print(answer.read_all().to_pylist())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[{'one': 1}]\n", "")
