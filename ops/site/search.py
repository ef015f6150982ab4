"""Asks the site's search what users ask, and fails if the page they need is not among the first
three. scripts/docs runs it after the build.

Terms, boosts and the order of results are as in the search of mkdocs-material: each term also
matches longer words, a page counts with its best section, and a section that has all terms counts
twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lunr import get_default_builder, lunr
from lunr.stemmer import stemmer

INDEX = Path(__file__).resolve().parents[2] / "build" / "site" / "search" / "search_index.json"
SHOWN = 3
QUESTIONS = {
    "delete old data": ["operations/settings.html", "tutorial.html", "cookbook.html"],
    "yesterday": ["cookbook.html", "consumers.html", "sdk.html"],
    "exactly once": ["guarantees.html", "consumers.html"],
    "publish refused": ["operations/troubleshooting.html", "sdk.html", "guarantees.html"],
    "how many partitions": ["keyed_groups.html"],
    "lag": ["consumers.html", "operations/metrics.html", "operations/alerts.html"],
    "upgrade": ["operations/upgrades.html"],
    "TLS": ["security.html", "operations/configuration.html"],
    "GDPR": ["cookbook.html", "security.html", "guarantees.html"],
    "personal data": ["cookbook.html", "security.html", "guarantees.html"],
    "other languages": ["other_languages.html"],
    "Rust": ["other_languages.html"],
    "javascript": ["other_languages.html"],
    "dead letter": ["consumers.html"],
    "backup": ["operations/backup.html"],
    "work queue": ["queues.html"],
    "iceberg": ["lake.html"],
    "schema": ["typed_streams.html"],
    "kafka consumer group": ["coming_from_kafka.html", "consumers.html"],
    "reset offset": ["consumers.html", "coming_from_kafka.html"],
}
"""What is typed, and the pages any of which answers it."""


class Search:
    """The index of the site."""

    def __init__(self, index: Path) -> None:
        found = json.loads(index.read_text())
        fields = [
            {"field_name": name, "boost": field["boost"]}
            for name, field in found["config"]["fields"].items()
        ]
        documents = [
            (
                {
                    "id": each["location"],
                    "title": each["title"],
                    "text": each["text"],
                    "tags": " ".join(each.get("tags", ())),
                },
                {"boost": each.get("boost", 1)},
            )
            for each in found["docs"]
        ]
        builder = get_default_builder()
        builder.pipeline.remove(stemmer)  # The site's pipeline has none.
        builder.search_pipeline.remove(stemmer)
        self._index = lunr(ref="id", fields=fields, documents=documents, builder=builder)

    def pages(self, query: str) -> list[str]:
        """The pages, best first."""
        terms = query.lower().split()
        best: dict[str, float] = {}
        for result in self._index.search(" ".join(f"{term}*" for term in terms)):
            matched = result["match_data"].metadata
            has_all = all(any(word.startswith(term) for word in matched) for term in terms)
            page, _, section = result["ref"].partition("#")
            score = result["score"] * (1 + (has_all + (not section)) ** 2)
            best[page] = max(best.get(page, 0), score)
        return sorted(best, key=lambda page: -best[page])


def main() -> int:
    search, failed = Search(INDEX), 0
    for query, wanted in QUESTIONS.items():
        found = search.pages(query)[:SHOWN]
        if not set(found) & set(wanted):
            answers = " or ".join(wanted)
            print(f"search: {query!r} finds {', '.join(found) or 'nothing'}, and not {answers}")
            failed += 1
    print(f"search: {len(QUESTIONS) - failed} of {len(QUESTIONS)} questions answered")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
