"""What the site needs beside the pages: README as its first page, no links out of them, and a
search that finds what a user wants first.

Pages link to files of the repository, which a site does not have: there only their text is left.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

TREE = Path(__file__).resolve().parents[2]
INSIDE = ("adr/", "architecture.md", "style.md", "simulation.md", "chaos.md", "protocol.md")
"""Pages about the inside: in the results of a search they come after those for users."""
KEYWORDS = {
    "consumers.md": ["dead letter", "lag", "reset", "yesterday"],
    "cookbook.md": ["delete", "GDPR", "personal data", "yesterday"],
    "guarantees.md": ["exactly once", "loss", "order"],
    "keyed_groups.md": ["partitions", "sharding"],
    "operations/backup.md": ["backup", "restore"],
    "operations/settings.md": ["delete", "old data", "retention", "TTL"],
    "operations/troubleshooting.md": ["error", "publish", "refused", "timeout"],
    "operations/upgrades.md": ["update", "upgrade", "version"],
    "other_languages.md": [
        "C",
        "Go",
        "Java",
        "JavaScript",
        "languages",
        "other",
        "Rust",
        "TypeScript",
    ],
    "web_services.md": ["FastAPI", "gunicorn", "outbox", "pydantic"],
    "security.md": ["ACL", "certificate", "SSL", "TLS", "token"],
}
"""Words that users type and a page does not say, or says too rarely. The search knows them as its
tags."""
FENCE = re.compile(r"^( *```\w+) [\w-]+$", re.MULTILINE)
"""A block with a word for the tests that run examples; the site would not know it as a block."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    files.append(File.generated(config, "index.md", content=(TREE / "README.md").read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of README begin at the repository, links of pages in docs/."""
    is_readme = page.file.src_uri == "index.md"
    base = TREE if is_readme else (TREE / "docs" / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        name = target.partition("#")[0]
        if re.match(r"[a-z]+:", target) or not name:
            return found[0]
        path = (base / name).resolve()
        if not path.is_relative_to(TREE / "docs") or path.is_dir() or path.name == "README.md":
            return text
        return f"[{text}]({target.removeprefix('docs/')})" if is_readme else found[0]

    if page.file.src_uri.startswith(INSIDE):
        page.meta["search"] = {"boost": 0.05}
    page.meta["tags"] = KEYWORDS.get(page.file.src_uri, [])
    return FENCE.sub(r"\1", LINK.sub(link, markdown))
