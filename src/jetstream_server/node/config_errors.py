"""Configuration errors as one line: the file or variable, the key, and what was meant.

    cluster.yaml: log.segment_byte: unknown key, did you mean segment_bytes?
    JETSTREAM_LOG__SEGMENT_BYTES: Input should be greater than or equal to 65536

A value is never repeated: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

ENVIRONMENT_PREFIX = "JETSTREAM_"


def one_line(
    error: ValidationError,
    model: type[BaseModel],
    path: Path | None,
    environment: Mapping[str, str],
) -> str:
    """The first problem, as one line. path: the file; None: there is none."""
    problem = error.errors(include_url=False, include_input=False)[0]
    location = list(map(str, problem["loc"]))
    key = ".".join(location)
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = f"unknown key{_meant(location, model)}"
    source = _set_by(location, environment)
    if source == variable_of(key):
        key = ""
    return ": ".join(part for part in (source or str(path or ""), key, message) if part)


def _set_by(location: Sequence[str], environment: Mapping[str, str]) -> str:
    """The variable that set this key, or its section as JSON; "" when none did."""
    ends = range(len(location), 0, -1)
    names = (variable_of(".".join(location[:end])) for end in ends)
    return next((name for name in names if name in environment), "")


def _meant(location: Sequence[str], model: type[BaseModel]) -> str:
    """For an unknown key: a similar key beside it, or the same key in another section."""
    section = [part for part in location[:-1] if not part.isdecimal()]
    keys = keys_of(model)
    beside = [key.rpartition(".")[2] for key in keys if key.split(".")[:-1] == section]
    elsewhere = [key for key in keys if key.rpartition(".")[2] == location[-1]]
    return did_you_mean(location[-1], beside) or did_you_mean(location[-1], elsewhere, 0.0)


def did_you_mean(given: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The most similar known name as the end of a sentence; "" when none is similar."""
    close = get_close_matches(given, list(known), 1, likeness)
    return f", did you mean {close[0]}?" if close else ""


def variable_of(key: str) -> str:
    """The environment variable that sets `log.segment_bytes`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "__").upper()


def keys_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key, as `log.segment_bytes`; for a list the keys of its elements, as `nodes.rack`."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        inner = _model_in(field.annotation)
        if inner is not None:
            keys += keys_of(inner, f"{prefix}{name}.")
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)
