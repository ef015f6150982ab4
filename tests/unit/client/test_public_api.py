"""The public API of the SDK, held against what was decided: names, signatures, docstrings.

After a change that is meant, `python -m tests.unit.client.test_public_api` writes the file anew.
Its diff shows what users will see. Of a docstring it has the first words, and a digest of it all.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jetstream_client

FILE = Path(__file__).with_name("public_api.txt")
WORDS = 60
"""Characters of a docstring that are shown."""


def _doc(value: object) -> str:
    text = inspect.getdoc(value) or ""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[:WORDS].splitlines()[0] if text else ''!r} {digest}"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    is_async = inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
    return ("async " if is_async else "") + str(signature)


def _members(cls: type) -> Iterator[str]:
    for name in sorted(dir(cls)):
        owner = next((each for each in cls.__mro__ if name in vars(each)), object)
        if name.startswith("_") or not owner.__module__.startswith("jetstream_"):
            continue
        value = vars(owner)[name]
        if isinstance(value, property):
            yield f"  {name}: property {_signature(value.fget)} {_doc(value)}"
        elif callable(value) or isinstance(value, classmethod | staticmethod):
            kind = f"{type(value).__name__} " if not inspect.isfunction(value) else ""
            yield f"  {name}: {kind}{_signature(getattr(cls, name))} {_doc(value)}"
        else:
            yield f"  {name}"


def _lines() -> Iterator[str]:
    for name in sorted(jetstream_client.__all__):
        value = getattr(jetstream_client, name)
        if not inspect.isclass(value):
            # A value has the docstring of its type, of which each Python has its own.
            yield f"{name} {_signature(value)} {_doc(value)}" if callable(value) else name
            continue
        yield f"class {name} {_signature(value)} {_doc(value)}"
        fields = {
            field: kind
            for each in reversed(value.__mro__)
            if each.__module__.startswith("jetstream_")
            for field, kind in vars(each).get("__annotations__", {}).items()
            if not field.startswith("_")
        }
        yield from (f"  {field}: field {kind}" for field, kind in sorted(fields.items()))
        yield from (line for line in _members(value) if line.strip() not in fields)


def test_the_public_api_is_what_was_decided() -> None:
    assert "\n".join(_lines()).splitlines() == FILE.read_text().splitlines()


if __name__ == "__main__":
    FILE.write_text("\n".join(_lines()) + "\n")
