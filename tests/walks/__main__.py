"""See the package."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.walks import counting, running


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.walks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the numbers on the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = counting.usual(running.walks_of(Path(folder)))
    for errand, found in counts.items():
        print(
            f"{errand}: {len(found.way)} files pass it on, of {len(found.entered)} entered; "
            f"{len(found.climbs)} climbs, {found.hops} hops, {len(found.json)} conversions"
        )
        for file in found.entered:
            print(f"  {'*' if file in found.way else ' '} {file}")
        for caller, file in found.climbs:
            print(f"  up from {caller} to {file}")
        for conversion in found.json:
            print(f"  {conversion}")
    if options.write:
        page = counting.PAGE.read_text()
        old, new = counting.table_on(page), counting.table(counts)
        counting.PAGE.write_text(page.replace("\n".join(old), "\n".join(new)))


if __name__ == "__main__":
    main()
