"""The console in a browser that stays open: late answers, none, odd ones, and what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.browser import Page, Walk, needs_chromium, walker
from tests.support.server import ServerProcess

pytestmark = needs_chromium


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    client.create_stream(name, f"{name}.>")
    yield name
    client.delete_stream(name)


@pytest.fixture
def walk(server: ServerProcess, tmp_path: Path) -> Walk:
    return walker(server.http, tmp_path)


FIRST_IS_LATE = """
window.fetched = window.fetch;
window.fetch = async (url, options) => {
  if (!url.includes('from=1&')) return fetched(url, options);
  await new Promise((done) => { window.release = done; });
  const answer = await fetched(url, options), body = new Blob([await answer.arrayBuffer()]);
  const taken = new TransformStream({
    flush() { setTimeout(() => { window.isTaken = true; }); }, // After all that waits for it.
  });
  return new Response(body.stream().pipeThrough(taken));
};
document.getElementById('from').value = 'offset';
"""


def _shows_from(offset: int) -> str:
    return (
        f"document.getElementById('at').value = '{offset}',document.getElementById('show').click()"
    )


def test_an_answer_that_comes_late_replaces_no_newer_one(
    walk: Walk, client: Client, stream: str
) -> None:
    for number in range(3):
        client.publish(f"{stream}.a", b"%d" % number)

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until("document.querySelectorAll('#messages details').length == 3")
        await page.value(FIRST_IS_LATE)
        await page.value(_shows_from(1))
        await page.until("window.release")
        await page.value(_shows_from(2))
        shown = "[...document.querySelectorAll('#messages details')].map((d) => d.dataset.offset)"
        await page.until(f"String({shown}) == '2'")
        await page.value("release()")
        await page.until("window.isTaken")
        assert await page.value(shown) == ["2"]

    walk(walking)


NO_ANSWERS = """
window.fetched = window.fetch, window.later = window.setTimeout;
window.setTimeout = (run, ms) => later(run, ms === PATIENCE_MS ? 0 : ms);
window.fetch = (url, { signal }) => new Promise((done, refuse) => {
  signal.addEventListener('abort', () => refuse(signal.reason));
});
"""


def test_a_node_that_answers_no_more_is_not_shown_as_well(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.value(NO_ANSWERS)
        await page.until("$('main').textContent.includes('does not answer')")
        await page.until("$('health').textContent.includes('no answer')")
        await page.value("window.setTimeout = later, location.hash = '#/access'")
        await page.until("$('main').textContent == 'Accessloading …'")  # Not another page's data.
        await page.value("window.fetch = fetched, location.hash = '#/'")
        await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
        await page.until("$('health').textContent.includes('all is well')")
        assert page.problems == []

    walk(walking)


def test_a_page_that_cannot_be_drawn_once_is_drawn_again(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.value(
            "window.drawn = page.draw,"
            "page.draw = () => { page.draw = drawn; throw new RangeError('odd'); }"
        )
        await page.until("$('main').textContent == 'odd'")
        await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
        assert len(page.problems) == 1

    walk(walking)


def test_a_place_that_no_stream_can_have_is_a_page_all_the_same(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.value("location.hash = '#/streams/%'")
        await page.until("document.title.startsWith('%')")
        assert page.problems == []

    walk(walking)


def test_rates_are_of_now_and_streams_that_are_not_shown_are_forgotten(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        kept = await page.value(
            "seen.set('long ago', { at: -SAMPLES_MS - 1, records: 5, samples: [1] }),"
            "seen.set('now', { at: 0, records: 5, samples: [1] }),"
            "forgetUnseen(0), [...seen.keys()]"
        )
        assert kept == ["now"]

    walk(walking)


def test_a_time_is_what_people_write_as_one(walk: Walk) -> None:
    written = {
        "2026-01-31": 1769817600000,
        "2026-01-31 12:00": 1769860800000,
        "2026-01-31T12:00:00": 1769860800000,
        "2026-01-31T12:00:00.5z": 1769860800500,
        "2026-01-31T12:00:00+01:00": 1769857200000,
        "2026-01-31 12:00:00 -0130": 1769866200000,
        "5": None,
        "12345": None,
        "31.1.2026": None,
        "2026-13-01": None,
        "": None,
    }

    async def walking(page: Page) -> None:
        assert await page.value(f"{[*written]}.map(timeOf)") == [*written.values()]
        assert (
            await page.value("moment('2026-01-31T12:00:00.500000Z')")
            == "2026-01-31 12:00:00.500000"
        )

    walk(walking)


def test_a_change_is_asked_for_once_and_its_answer_closes_no_other_question(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.value(
            "window.times = 0, window.answered = new Promise((done) => { window.finish = done; }),"
            "ask('first', [], '', () => { window.times += 1; return answered; })"
        )
        await page.value(
            "for (const _ of [1, 2]) document.querySelector('#dialog form').requestSubmit();"
            "$('dialog').close();"
            "ask('second', [], '', () => {});"
            "finish();"
            "new Promise((done) => setTimeout(done))"
        )
        told = "[times, $('dialog').open, document.querySelector('#dialog h2').textContent]"
        assert await page.value(told) == [1, True, "second"]

    walk(walking)


def test_a_live_tail_goes_on_when_the_stream_is_another_one(
    walk: Walk, client: Client, stream: str
) -> None:
    for number in range(3):
        client.publish(f"{stream}.a", b"%d" % number)
    note = "document.querySelector('[role=status].dim').textContent"

    def begin_anew() -> None:
        client.delete_stream(stream)
        client.create_stream(stream, f"{stream}.>")

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until("document.querySelectorAll('#messages details').length == 3")
        await page.value("document.getElementById('tail').click()")
        await page.until(f"{note} == 'following, at offset 3'")
        await asyncio.to_thread(begin_anew)
        await page.until(f"{note} == 'following, at offset 0'")
        await asyncio.to_thread(client.publish, f"{stream}.a", b"new")
        await page.until(f"{note} == 'following, at offset 1'")

    walk(walking)
