"""What a program that uses the SDK sees: types, and errors to be told apart by their class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import jetstream_client
from jetstream_client import JetstreamError

WELL_TYPED = """
from collections.abc import Iterator
from jetstream_client import AsyncClient, Client, Message, StreamDescription

def use(client: Client) -> Iterator[bytes | None]:
    client.create_stream("orders", subject="orders.>", replicas=1, flush="group")
    offset: int = client.publish("orders.eu", b"x", key=b"42", headers={"source": "web"}).offset
    for message in client.fetch("orders", offset=offset, max_messages=100, max_wait=1.0):
        yield message.value
    for message in client.consume("orders", start="earliest"):
        one: Message = message
    description: StreamDescription = client.describe_stream("orders")

async def use_async(client: AsyncClient) -> int:
    return (await client.publish("orders.eu", "x", acks=["orders"])).offset
"""

ILL_TYPED = """
from jetstream_client import Client

def misuse(client: Client) -> None:
    client.publish(1, b"x")
    client.create_stream("orders", subject="orders.>", flush="sometimes")
    client.fetch("orders", offset=0).missing
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where mypy keeps what it knows of the package and all it imports."""
    return tmp_path_factory.mktemp("checked")


@pytest.mark.parametrize(
    ("name", "program", "errors"), [("well_typed", WELL_TYPED, 0), ("ill_typed", ILL_TYPED, 3)]
)
def test_programs_are_checked_against_the_types_of_the_package(
    checked: Path, name: str, program: str, errors: int
) -> None:
    (checked / f"{name}.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", f"{name}.py"],
        cwd=checked,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.stdout.count(": error: ") == errors, done.stdout + done.stderr
    assert done.returncode == (1 if errors else 0)


def test_every_error_of_the_package_has_one_root_a_code_and_says_whether_to_try_again() -> None:
    errors = [
        getattr(jetstream_client, name)
        for name in jetstream_client.__all__
        if name.endswith("Error") and name != JetstreamError.__name__
    ]
    assert len(errors) > 10
    for error in errors:
        assert issubclass(error, JetstreamError)
        assert isinstance(error.retriable, bool)
    codes = [error("why").code for error in errors]
    assert len(set(codes)) == len(codes)
