"""Cursors and consumer groups in the console and the API behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.integration.test_console import ask
from tests.support.browser import Page, browser, needs_chromium
from tests.support.server import ServerProcess

RECORDS = 10
NO_CURSORS = """
window.fetched = window.fetch;
window.fetch = (url, options) => url.includes('/cursors?')
  ? Promise.resolve(new Response('{"error": {"message": "no leader"}}', { status: 503 }))
  : fetched(url, options);
"""


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    """With ten records."""
    client.create_stream(name, f"{name}.>")
    for number in range(RECORDS):
        client.publish(f"{name}.a", b"%d" % number)
    yield name
    if client.list_streams(name):
        client.delete_stream(name)


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
    assert any(each["name"] == group for each in ask(server, "groups")[1]["groups"])
    assert ask(server, "groups?group=nobody") == (200, {"groups": []})


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


@needs_chromium
def test_cursors_that_nobody_knows_now_are_said_to_be_unknown(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    client.commit_cursor("billing", stream, 4)

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.querySelector('table[aria-label=Cursors]')")
            await page.value(NO_CURSORS)
            told = "[...document.querySelectorAll('[role=alert]')].map(e => e.textContent)"
            await page.until(f"{told}.includes('unknown now: no leader')")
            assert page.problems == []

    asyncio.run(walk())


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
