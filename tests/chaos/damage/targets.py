"""Which files and folders of a node's data folder there are, by kind."""

from __future__ import annotations

from pathlib import Path

STREAM_FILES = ("checkpoint", "producers", "compaction")
NODE_FILES = {
    "runs": "runs",
    "meta": "meta.json",
    "journal": "metadata/journal",
    "snapshot": "metadata/snapshot",
    "group": "metadata/group.json",
}
FOLDERS = ("stream_folder", "metadata_folder", "data_folder")
KINDS = (
    "segment_sealed",
    "segment_active",
    "index",
    *STREAM_FILES,
    *NODE_FILES,
    "other",
    *FOLDERS,
)
IGNORED = ("lock",)
"""Files without contents."""


def candidates(data: Path, kind: str) -> list[Path]:
    """All of that kind, in an order that depends on names alone."""
    streams = sorted(path for path in (data / "streams").glob("*") if path.is_dir())
    match kind:
        case "segment_sealed":
            return [path for stream in streams for path in sorted(stream.glob("*.log"))[:-1]]
        case "segment_active":
            return [path for stream in streams for path in sorted(stream.glob("*.log"))[-1:]]
        case "index":
            return [path for stream in streams for path in sorted(stream.glob("*.index"))]
        case "stream_folder":
            return streams
        case "metadata_folder":
            found = [data / "metadata"]
        case "data_folder":
            found = [data]
        case "other":
            return _others(data)
        case _ if kind in STREAM_FILES:
            found = [stream / kind for stream in streams]
        case _:
            found = [data / NODE_FILES[kind]]
    return [path for path in found if path.exists()]


def _others(data: Path) -> list[Path]:
    """Files that no kind names: of formats younger than this list."""
    known = {data / name for name in (*NODE_FILES.values(), *IGNORED)}
    return [
        path
        for path in sorted(data.rglob("*"))
        if path.is_file()
        and path not in known
        and path.name not in STREAM_FILES
        and path.suffix not in (".log", ".index", ".tmp")
        and "quarantine" not in path.parts
    ]
