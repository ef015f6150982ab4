"""Cursors and consumer groups in the console and the API behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.integration.test_console import ask
from tests.support.browser import Page, browser, needs_chromium
from tests.support.server import ServerProcess

RECORDS = 10


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    """With ten records."""
    client.create_stream(name, f"{name}.>")
    for number in range(RECORDS):
        client.publish(f"{name}.a", b"%d" % number)
    yield name
    if client.list_streams(name):
        client.delete_stream(name)


def test_cursors_are_listed_with_their_lag(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.commit_cursor(f"{stream}-billing", stream, 4)
    client.commit_cursor(f"{stream}-audit", stream, 10)
    behind = client.describe_cursor(f"{stream}-billing", stream).lag_seconds
    _, found = ask(server, f"cursors?stream={stream}")
    audit, billing = (each["lag_seconds"] for each in found["cursors"])
    assert audit == 0
    assert behind is not None
    assert 0 < behind <= billing, "both count from when the record was appended"
    assert (found["total"], found["is_all"]) == (2, True)
    assert [(each["name"], each["offset"], each["lag"]) for each in found["cursors"]] == [
        (f"{stream}-audit", "10", 0),
        (f"{stream}-billing", "4", 6),
    ]
    assert {each["state"] for each in found["cursors"]} == {"current"}
    _, found = ask(server, f"cursors?match={stream}-BILL&limit=1")
    assert [each["name"] for each in found["cursors"]] == [f"{stream}-billing"]
    _, found = ask(server, f"cursors?cursor={stream}-audit&start=1")
    assert (found["total"], found["cursors"]) == (1, [])
    client.delete_stream(stream)
    _, found = ask(server, f"cursors?match={stream}-billing")
    (deleted,) = found["cursors"]
    assert (deleted["state"], deleted["lag"], deleted["lag_seconds"]) == (
        "stream deleted",
        None,
        None,
    )


def test_a_group_says_who_reads_what_and_how_far_behind_it_is(
    server: ServerProcess, client: Client, stream: str
) -> None:
    group = f"{stream}-workers"
    with client.consume_group(stream, group, auto_commit=False) as member:
        assert [next(member).offset for _ in range(3)] == [0, 1, 2]
        _, found = ask(server, f"groups?group={group}")
        (told,) = found["groups"]
        (share,) = told["shares"]
        assert share["owner"] == told["members"][0]["id"]
        assert (share["offset"], share["lag"]) == (None, RECORDS), "nothing is committed yet"
        assert share["lag_seconds"] > 0
        member.commit()
        (told,) = ask(server, f"groups?group={group}")[1]["groups"]
        assert (told["shares"][0]["offset"], told["shares"][0]["lag"]) == (3, RECORDS - 3)
        assert told["shares"][0]["stream"] == f"{stream}@{stream}.>"
        status, found = ask(server, f"cursors/{group}/{stream}/seek", {"earliest": True})
        assert (status, found["error"]["code"]) == (400, "precondition_failed"), "it has members"
    assert any(each["name"] == group for each in ask(server, "groups")[1]["groups"])
    assert ask(server, "groups?group=nobody") == (200, {"groups": []})


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        ({"earliest": True}, 0),
        ({"latest": True}, RECORDS),
        ({"offset": 7}, 7),
        ({"timestamp_us": 0}, 0),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_a_cursor_is_moved(
    server: ServerProcess, client: Client, stream: str, body: dict[str, object], offset: int
) -> None:
    client.commit_cursor("billing", stream, 4)
    status, found = ask(server, f"cursors/billing/{stream}@{stream}.%3E/seek", body)
    assert (status, found["offset"]) == (200, str(offset))
    assert client.describe_cursor("billing", stream).offset == offset


@pytest.mark.parametrize(
    "body",
    [{}, {"offset": -1}, {"offset": "7"}, {"offset": True}, {"earliest": 1}, {"timestamp_us": 1.5}],
    ids=json.dumps,
)
def test_a_place_that_cannot_be_meant_is_refused(
    server: ServerProcess, stream: str, body: dict[str, object]
) -> None:
    status, found = ask(server, f"cursors/billing/{stream}/seek", body)
    assert (status, found["error"]["code"]) == (400, "invalid_request")


def test_a_cursor_is_not_moved_to_what_the_stream_does_not_hold(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.commit_cursor("billing", stream, 4)
    status, found = ask(server, f"cursors/billing/{stream}/seek", {"offset": RECORDS + 1})
    assert (status, found["error"]["code"]) == (400, "offset_out_of_range")
    assert ask(server, f"cursors/a b/{stream}/seek".replace(" ", "%20"), {"offset": 1})[0] == 400
    assert ask(server, "cursors/billing/nobody/seek", {"offset": 1})[0] == 404
    evil = ask(
        server, f"cursors/billing/{stream}/seek", {"offset": 1}, Origin="http://evil.example"
    )
    assert evil[0] == 403
    assert client.describe_cursor("billing", stream).offset == 4


def test_a_cursor_is_deleted(server: ServerProcess, client: Client, stream: str) -> None:
    client.commit_cursor("billing", stream, 4)
    assert ask(server, f"cursors/billing/{stream}/delete", {})[0] == 200
    assert client.list_cursors(stream=stream) == []
    assert ask(server, f"cursors/billing/{stream}/delete", {})[0] == 404


@needs_chromium
def test_an_operator_moves_and_deletes_a_cursor_in_a_browser(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    client.commit_cursor(f"{stream}-c", stream, 4)
    with client.consume_group(stream, f"{stream}-g") as member:
        next(member)

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.look()
            await page.open(f"{server.http}/")
            await page.until("document.querySelector('table[aria-label=Nodes]')")
            await page.key("r")
            await page.until("document.querySelector('table[aria-label=Cursors]')")
            await _sees_the_group(page, f"{stream}-g")
            await page.value(f"location.hash = '#/consumers?match={stream}-c'")
            await _sees_the_cursor(page, "6")
            assert not await page.value("!!document.querySelector('[id^=seek-]')"), "not yet"
            await page.value("document.getElementById('changes').click()")
            await page.until("document.querySelector('[id^=seek-]')")
            await _moves_it(page)
            await _sees_the_cursor(page, "3")
            await page.look(390, 844, dark=True, phone=True)
            wide = await page.value("document.documentElement.scrollWidth")
            assert wide <= 390, "nothing sticks out on a phone"
            await page.value("document.querySelector('[id^=forget-]').click()")
            await page.value("document.querySelector('dialog form').requestSubmit()")
            await page.until("document.querySelectorAll('[id^=forget-]').length == 0")
            assert page.problems == []

    asyncio.run(walk())
    assert [each.name for each in client.list_cursors(stream=stream)] == [f"{stream}-g"]


async def _sees_the_group(page: Page, group: str) -> None:
    await page.until(f"document.getElementById('group-{group}')")
    await page.value(f"document.getElementById('group-{group}').click()")
    await page.until("document.querySelector('table[aria-label=Shares] tbody tr')")
    commands = await page.value("[...document.querySelectorAll('code')].map(e => e.textContent)")
    assert any(each.endswith(f"group describe {group}") for each in commands)


async def _sees_the_cursor(page: Page, lag: str) -> None:
    cell = "document.querySelector('table[aria-label=Cursors] td[data-label=Lag]')"
    await page.until(f"{cell} && {cell}.textContent == '{lag}'")


async def _moves_it(page: Page) -> None:
    await page.value("document.querySelector('[id^=seek-]').click()")
    await page.value("document.querySelector('dialog [name=where]').value = 'offset'")
    await page.value(
        "document.querySelector('dialog [name=at]').value = '7';"
        "document.querySelector('dialog form').dispatchEvent(new Event('input'))"
    )
    said = await page.value("document.querySelector('dialog code').textContent")
    assert said.endswith(" 7")
    await page.value("document.querySelector('dialog form').requestSubmit()")
    await page.until("!document.getElementById('dialog').open")
