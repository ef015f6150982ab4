"""Writes what repeats the table of settings (src/jetstream_protocol/settings.py) as static types
and as documentation. With `--check` it writes nothing, and fails if something is not current."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from jetstream_protocol.settings import (  # noqa: E402  the tree's own, not an installed one
    CLUSTER_SETTINGS,
    FOR_PEOPLE,
    STREAM_SETTINGS,
    Kind,
    Setting,
)

NOTE = """

Written by scripts/generate from jetstream_protocol/settings.py. Do not edit.
"""
SERVER = ROOT / "src/jetstream_server/metadata/state/setting_fields.py"
CLIENT = ROOT / "src/jetstream_client/values/settings.py"
DOCS = ROOT / "docs/operations/settings.md"


def server_fields() -> str:
    fields = "\n".join(f"    {each.field}: {_stored_type(each)}" for each in STREAM_SETTINGS)
    return f'''"""The settings of a stream as fields.{NOTE}"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

{_literals("Policy", "=")}

@dataclass(frozen=True, slots=True)
class SettingFields:
    """Times in microseconds, sizes in bytes. Their order is that of a row in the metadata."""

{fields}
'''


def client_types() -> str:
    alterable = [each for each in STREAM_SETTINGS if each.alterable]
    others = [each for each in STREAM_SETTINGS if not each.alterable]
    shown = [each for each in STREAM_SETTINGS if each.name not in ("replicas", "observers")]
    return f'''"""Settings as programs give them: durations in seconds, sizes in bytes.{NOTE}"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from jetstream_client.values.durations import Seconds
from jetstream_client.values.sizes import Size

{_literals("Option", ": TypeAlias =")}

class AlterableSettings(TypedDict, total=False):
    """Settings that `alter_stream` can change. A setting that is left out or None stays as it is.

{_meanings(alterable)}
    """

{_entries(alterable)}


class GroupSettings(AlterableSettings, total=False):
    """What `create_group` sets on each of its streams; see StreamSettings.

{_meanings(others)}
    """

{_entries(others)}


class StreamSettings(GroupSettings, total=False):
    """Further settings of `create_stream`, which cannot be changed later. restoring: the new stream
    does not listen to its subject; `restore_batches` fills it, until `alter_stream` sets this to
    False. group: the streams of a group share the messages of their subject; each message goes to
    one of them. partition, partitions: `create_group` sets these for keyed groups."""

    group: str | None
    partition: int | None
    partitions: int | None


class ClusterSettings(TypedDict, total=False):
    """Settings of the whole cluster that `alter_cluster` can change. A setting that is left out or
    None stays as it is.

{_meanings(CLUSTER_SETTINGS)}
    """

{_entries(CLUSTER_SETTINGS)}


@dataclass(frozen=True, slots=True)
class StreamFields:
    """The name and the settings of a stream of the registry. Durations in seconds."""

    id: int
    name: str
    subject: str
    group: str
    replication_factor: int
{_lines(f"{each.name}: {_shown_type(each)}" for each in shown)}
'''


def docs_page() -> str:
    """The page with new tables between its marks."""
    text = DOCS.read_text()
    shown = {"stream": [each for each in FOR_PEOPLE if each.help], "cluster": CLUSTER_SETTINGS}
    for name, settings in shown.items():
        begin, end = (f"<!-- scripts/generate: {word} {name} -->\n" for word in ("begin", "end"))
        before, _, rest = text.partition(begin)
        text = before + begin + docs_table(settings) + end + rest.partition(end)[2]
    return text


def docs_table(settings: Iterable[Setting]) -> str:
    rows = [f"| `{each.name}` | {_default(each)} | {each.meaning} |" for each in settings]
    head = ["| setting | default | meaning |", "|---|---|---|"]
    return "".join(f"{line}\n" for line in [*head, *rows])


def _literals(suffix: str, sign: str) -> str:
    choices = [each for each in STREAM_SETTINGS if each.kind is Kind.CHOICE]
    return "".join(
        f"{each.type_name}{suffix}{sign if sign[0] == ':' else ' ' + sign} "
        f"Literal[{', '.join(_quoted(choice) for choice in each.choices)}]\n"
        for each in choices
    )


def _stored_type(setting: Setting) -> str:
    kind, default = "int", ""
    if setting.kind is Kind.FLAG:
        kind = "bool"
    elif setting.kind is Kind.CHOICE:
        kind = f"{setting.type_name}Policy"
    elif setting.kind is Kind.TEXT:
        kind = "str"
    if isinstance(setting.default, str):
        default = f" = {_quoted(setting.default)}"
    elif setting.default is not None:
        default = f" = {setting.default!r}"
    return kind + default


def _given_type(setting: Setting) -> str:
    types = {
        Kind.FLAG: "bool", Kind.DURATION: "Seconds", Kind.BYTES: "Size", Kind.TEXT: "str"
    }  # fmt: skip
    if setting.kind is Kind.CHOICE:
        return f"{setting.type_name}Option"
    return types.get(setting.kind, "int")


def _shown_type(setting: Setting) -> str:
    types = {Kind.FLAG: "bool", Kind.DURATION: "float", Kind.CHOICE: "str", Kind.TEXT: "str"}
    return types.get(setting.kind, "int")


def _entries(settings: Iterable[Setting]) -> str:
    return _lines(f"{each.name}: {_given_type(each)} | None" for each in settings)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _meanings(settings: Iterable[Setting]) -> str:
    """As a docstring has them: without links."""
    units = {Kind.DURATION: "seconds: ", Kind.BYTES: "bytes: "}
    texts = []
    for each in settings:
        plain = re.sub(r" See \[.*?\]\(.*?\)\.?|; see \[.*?\]\(.*?\)", "", each.meaning)
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", plain).replace("`", "").rstrip(".")
        zero = f"; 0: {each.zero}" if each.zero and "0:" not in plain else ""
        texts.append(f"{each.name}: {units.get(each.kind, '')}{plain}{zero}.")
    return "\n".join(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="        ",
                                   break_on_hyphens=False) for text in texts)  # fmt: skip


def _default(setting: Setting) -> str:
    match setting.default:
        case None:
            return ""
        case bool(flag):
            return str(flag).lower()
        case "":
            return ""
        case str(choice):
            return f"`{choice}`"
        case number if number and setting.kind is Kind.DURATION:
            seconds = number // 1_000_000
            return f"{seconds} s" if seconds < 3600 else f"{seconds // 3600} h"
        case number:
            shown = ("unlimited", "no limit", "10 s")
            return f"{number} ({setting.zero})" if setting.zero in shown else str(number)


def _quoted(text: str) -> str:
    return f'"{text}"'


def main(arguments: list[str]) -> int:
    wanted = {
        SERVER: server_fields(),
        CLIENT: client_types(),
        DOCS: docs_page(),
    }
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current: run scripts/generate", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
