"""The command for an extra names the package as pip was given it."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_protocol.extras import command_for


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        ({}, "pip install 'jetstream-log[sql,arrow]'"),
        (
            {"url": "file:///my%20tree", "dir_info": {"editable": True}},
            "pip install -e '/my tree[sql,arrow]'",
        ),
        ({"url": "file:///tree", "dir_info": {}}, "pip install '/tree[sql,arrow]'"),
        (
            {"url": "file:///d/jetstream_log-1-any.whl", "archive_info": {}},
            "pip install '/d/jetstream_log-1-any.whl[sql,arrow]'",
        ),
        (
            {"url": "https://h/j.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'jetstream-log[sql,arrow] @ git+https://h/j.git@abc'",
        ),
        (
            {"url": "https://h/j.whl", "archive_info": {}},
            "pip install 'jetstream-log[sql,arrow] @ https://h/j.whl'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(
    noted: dict[str, Any], command: str
) -> None:
    assert command_for(noted, ("sql", "arrow")) == command
