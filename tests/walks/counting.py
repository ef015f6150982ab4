"""Counts files, climbs, hops and conversions of a walk; docs/architecture.md says what counts."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from tests.walks.traced_server import Walk

T = TypeVar("T")
TREE: Final = Path(__file__).resolve().parents[2]
PAGE: Final = TREE / "docs/architecture.md"
NAMES: Final = {
    "message": "a message, from NATS to the disk to its ack",
    "fetch": "a fetch, to `sendfile`",
    "command": "a change of a stream's settings, from gRPC to the answer",
}
_LAST: Final = {
    "message": ("jetstream_server/ingest/nats/link.py", "write"),
    "fetch": ("jetstream_server/net/frame_socket.py", "_sendfile"),
    "command": ("jetstream_server/serving/grpc/grpc_loop.py", "_deliver"),
}
"""With this function the errand is done. What happens afterwards does not count."""
HEAD: Final = "| errand | files that pass it on | files entered | climbs | hops | JSON |"


@dataclass(frozen=True, slots=True)
class Count:
    """entered: every file, in the order in which the errand comes to it. way: those that pass it
    on. climbs: from which file to which. hops: to other threads. json: conversions."""

    entered: tuple[str, ...]
    way: tuple[str, ...]
    climbs: tuple[tuple[str, str], ...]
    hops: int
    json: tuple[str, ...]


@cache
def _floors(file: str) -> dict[tuple[int, str], int]:
    """The floor of a file in each contract of layers that names it; 0 is the lowest."""
    contracts = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["importlinter"]
    module, floors = file.removesuffix(".py").replace("/", "."), {}
    for number, contract in enumerate(contracts["contracts"]):
        if contract["type"] != "layers":
            continue
        for container in contract.get("containers", [""]):
            for floor, layer in enumerate(reversed(contract["layers"])):
                for each in layer.replace(":", "|").split("|"):
                    name = f"{container}.{each.strip()}".removeprefix(".")
                    if f"{module}.".startswith(f"{name}."):
                        floors[number, container] = floor
    return floors


def is_climb(caller: str, file: str) -> bool:
    """Whether the file is on a higher floor. The outermost contract that tells them apart says."""
    one, other = _floors(caller), _floors(file)
    apart = [one[each] < other[each] for each in one if each in other and one[each] != other[each]]
    return bool(apart) and apart[0]


def count(walk: Walk) -> Count | None:
    """None: the errand was not done by what this walk has seen."""
    end = _LAST[walk.errand]
    ends = [number for number, each in enumerate(walk.steps) if (each.file, each.function) == end]
    if not ends:
        return None
    steps = walk.steps[: ends[-1] + 1]
    between = _unique((each.caller, each.file) for each in steps if each.caller)
    between = [(caller, file) for caller, file in between if caller != file]
    way = {caller for caller, _ in between} | {steps[-1].file}
    entered = _unique(step.file for step in steps)
    asked: set[tuple[str, str]] = set()
    climbs = []
    for caller, file in between:
        if is_climb(caller, file) and (file, caller) not in asked:
            climbs.append((caller, file))
        asked.add((caller, file))
    return Count(
        tuple(entered),
        tuple(each for each in entered if each in way),
        tuple(climbs),
        sum(step.hops for step in steps),
        tuple(walk.json),
    )


def usual(walks: Iterable[Walk]) -> dict[str, Count]:
    """By errand: the count of most of its walks. Some differ: at a tick of the metadata thread, at
    the first of its kind, at a new second."""
    counts: dict[str, Counter[Count]] = {errand: Counter() for errand in NAMES}
    for walk in walks:
        found = count(walk)
        if found is not None:
            counts[walk.errand][found] += 1
    return {errand: found.most_common(1)[0][0] for errand, found in counts.items()}


def table(counts: dict[str, Count]) -> list[str]:
    """The rows of the table on the page, without its head."""
    return [
        f"| {NAMES[errand]} | {len(each.way)} | {len(each.entered)} | {_named(each.climbs)} | "
        f"{each.hops} | {len(each.json)} |"
        for errand, each in counts.items()
    ]


def _named(climbs: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"`{_short(one)}` → `{_short(other)}`" for one, other in climbs)
    return f"{len(climbs)}: {named}" if climbs else "0"


def _short(file: str) -> str:
    return "/".join(file.split("/")[-2:])


def table_on(page: str) -> list[str]:
    """The same rows as a page has them."""
    lines = page.splitlines()
    start = lines.index(HEAD) + 2
    return lines[start : start + len(NAMES)]


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
