"""The wheel that is published: what it holds, and what the SDK alone brings along."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from importlib.metadata import distribution, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jetstream_client import Client
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", TREE, source], check=True)
    subprocess.run([*command, "--no-deps", "--wheel-dir", folder, source], check=True)
    (found,) = folder.glob("*.whl")
    return zipfile.ZipFile(found)


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


def test_a_server_from_the_wheel_alone_serves_everything(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path / "site")
    server = FromWheel(tmp_path / "data")
    server.site = tmp_path / "site"
    server.start()
    try:
        console = TREE / "src" / "jetstream_server" / "serving" / "http" / "console_files"
        files = [path.name for path in console.iterdir() if path.suffix != ".html"]
        assert "console.js" in files
        for path in ("", *files, "healthz", "readyz", "api/v1/cluster"):
            with urllib.request.urlopen(f"{server.http}/{path}") as answer:
                assert answer.read(), path
        with urllib.request.urlopen(f"{server.http}/metrics") as answer:
            assert f'version="{version("jetstream-log")}"' in answer.read().decode()
        with Client(server.grpc) as client:
            client.create_stream("orders", "orders.>")
            client.publish("orders.eu", b"hello")
            assert [each.value for each in client.fetch("orders")] == [b"hello"]
    finally:
        server.kill()


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
    assert done.stderr.splitlines()[-1] == f"  pip install 'jetstream-log[{extra}]'"
    assert done.stderr.count("\n") == 2
