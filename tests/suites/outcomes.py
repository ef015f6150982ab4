"""What became of the tests of another project, compared with what is expected of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path


def outcomes(report: Path) -> dict[str, str]:
    """By `Class.test`, from a report in JUnit's form: "" if it has passed, or why not."""
    return {
        f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name'].removesuffix('()')}": (
            _failure(case)
        )
        for case in ET.parse(report).getroot().iter("testcase")
        if case.find("skipped") is None
    }


def _failure(case: ET.Element) -> str:
    found = next((each for each in case if each.tag in ("failure", "error")), None)
    if found is None:
        return ""
    return ((found.attrib.get("message") or found.tag).splitlines() or [""])[0][:200]


def judged(
    project: str, found: Mapping[str, str], expected: Mapping[str, str], unstable: Mapping[str, str]
) -> int:
    """Print each test that did not end as it is expected to. Returns the exit code."""
    changes = [
        f"FAILS   {name}: {why}"
        for name, why in found.items()
        if why and name not in expected and name not in unstable
    ]
    changes += [
        f"PASSES  {name}, of which it is said: {expected[name]}"
        for name, why in found.items()
        if not why and name in expected
    ]
    for line in changes:
        print(line)
    passed = sum(not why for why in found.values())
    failed = len(found) - passed
    print(f"{project}'s tests: {passed} passed, {failed} failed; {len(changes)} not as expected")
    return 1 if changes or not passed else 0
