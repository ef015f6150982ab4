"""The programs of the page for other languages, and those for curl and browsers, do what they say.

Go and what needs packages run in `scripts/test all`, which sets TEST_LANGUAGES.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.browser import browser, needs_chromium
from tests.support.http_calls import call
from tests.support.server import ServerProcess

TREE = Path(__file__).parents[2]
PAGE = (TREE / "docs" / "other_languages.md").read_text()
ALL = ["0 first", "1 zweite Zeile: ü", "2 " + "x" * 100_000]
PATIENCE_SECONDS = 240.0
CARGO = """
[package]
name = "reader"
version = "0.1.0"
edition = "2021"
[dependencies]
ureq = { version = "3", default-features = false }
serde_json = "1"
"""


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [each for each in programs if shutil.which(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


in_all = pytest.mark.skipif(not os.environ.get("TEST_LANGUAGES"), reason="only in scripts/test all")


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    client.create_stream(name, name)
    for line in ALL:
        client.publish(name, line.partition(" ")[2])
    yield name
    client.delete_stream(name)


def block(language: str, server: ServerProcess, stream: str, at: int = 0) -> str:
    """The program of the page, for this stream of this server."""
    text = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[at]
    text = text.replace("http://127.0.0.1:9295", server.http).replace("127.0.0.1:9292", server.grpc)
    return text.replace("/orders/", f"/{stream}/").replace('"orders"', f'"{stream}"')


def run(folder: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs("curl")
def test_curl(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    command = shlex.split(block("sh", server, stream))
    rows = [json.loads(line) for line in run(tmp_path, *command).splitlines()]
    assert [f"{row['offset']} {row['value']}" for row in rows] == ALL


@needs("node")
def test_javascript(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "read.mjs").write_text(block("js", server, stream))
    assert run(tmp_path, "node", "read.mjs").splitlines() == ALL


@in_all
@needs("go")
def test_go(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "read.go").write_text(block("go", server, stream))
    found = run(tmp_path, "go", "run", "read.go", GOTOOLCHAIN="local", CGO_ENABLED="0")
    assert found.splitlines() == ALL


@in_all
@needs("cargo")
def test_rust(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(CARGO)
    (tmp_path / "src" / "main.rs").write_text(block("rust", server, stream))
    assert run(tmp_path, "cargo", "run", "--quiet").splitlines() == ALL


@in_all
@needs("node", "npm")
def test_grpc_in_javascript(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    run(tmp_path, "npm", "install", *quiet, "@grpc/grpc-js", "@grpc/proto-loader")
    (tmp_path / "proto").symlink_to(TREE / "proto")
    (tmp_path / "read.mjs").write_text(block("js", server, stream, at=1))
    reading = subprocess.Popen(
        ("node", "read.mjs"), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reading.stdout is not None
        assert [reading.stdout.readline().rstrip("\n") for _ in ALL] == ALL
    finally:
        reading.kill()
        reading.communicate()


@needs("curl")
def test_every_curl_of_the_page_of_http_is_answered(
    server: ServerProcess, client: Client, name: str, tmp_path: Path
) -> None:
    client.create_stream(name, f"{name}.>")
    client.publish(f"{name}.eu", b"0")
    client.commit_cursor("billing", name, 0)
    text = (TREE / "docs" / "http.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("curl ")]
    assert len(commands) == 8
    for line in commands:
        line = line.replace("http://127.0.0.1:9295", server.http).replace("orders", name)
        curl, *words = shlex.split(line, comments=True)
        run(tmp_path, curl, "--fail", "--silent", "--show-error", *words)
    assert client.list_cursors(stream=name) == []
    client.delete_stream(name)


def test_grafana_s_query_has_its_columns(server: ServerProcess, client: Client, name: str) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    query = json.loads(text)
    client.create_stream(name, name)
    client.publish(name, b"12.5")
    path = query["url"].removeprefix("http://127.0.0.1:9295").replace("/prices/", f"/{name}/")
    head, row = call(server.http, "GET", path).body.decode().splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["value"] == "12.5"
    assert {each["selector"] for each in query["columns"]} <= set(cells)
    client.delete_stream(name)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextmanager
def files_served(folder: Path) -> Iterator[str]:
    """Another web server; yields its origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@needs_chromium
def test_a_page_of_another_server_shows_what_comes(tmp_path: Path) -> None:
    async def walk(server: ServerProcess, origin: str, client: Client) -> None:
        async with browser(tmp_path / "browser") as page:
            shown = "document.getElementById('records')?.textContent"
            await page.open(f"{origin}/tail.html?node={server.http}")
            await page.until(f"{shown}.includes(' orders first')")
            await asyncio.to_thread(client.publish, "orders", b"later")
            await page.until(f"{shown}.includes(' orders later')")
            assert page.problems == []

    with files_served(TREE / "examples" / "http") as origin:
        variables = {"JETSTREAM_HTTP__CORS_ORIGINS": json.dumps([origin])}
        server = ServerProcess(tmp_path / "data", environment=variables)
        server.start()
        try:
            with Client(server.grpc, timeout=60) as client:
                client.create_stream("orders", "orders")
                client.publish("orders", b"first")
                asyncio.run(walk(server, origin, client))
        finally:
            server.kill()
