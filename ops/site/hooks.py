"""What the site needs beside the pages: README as its first page, and no links out of them.

Pages link to files of the repository, which a site does not have: there only their text is left.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

TREE = Path(__file__).resolve().parents[2]
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

    return LINK.sub(link, markdown)
