"""The console's pages: how they are laid out, what they say is wrong, and what they ask for."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client
from jetstream_client.cli import interrupts
from jetstream_protocol import typed_json
from tests.support.browser import Page, Walk, browser, needs_chromium, walker
from tests.support.command import jetstream
from tests.support.secured import secured_server
from tests.support.server import ServerProcess

pytestmark = needs_chromium

MANY_LONG = """
window.fetched = window.fetch;
window.fetch = async (url, options) => {
  const answer = await fetched(url, options);
  if (!url.includes('v1/streams?')) return answer;
  const found = await answer.json(), one = found.streams[0];
  const streams = Array.from({ length: 200 }, (_, at) => ({
    ...one, id: 1000 + at, name: `${at}-${'a-long-name-'.repeat(10)}`.slice(0, 120),
    high_watermark: 123456789012, size_bytes: 98765432109, lake_end_offset: 123456789012,
  }));
  return new Response(JSON.stringify({ streams, total: 500 }));
};
"""
SHOWN = (
    "[...document.querySelectorAll('#messages details')].map((row) => row.dataset.offset).join()"
)
NODE: dict[str, Any] = {"address": {"node_id": 0, "http": "h:1"}, "fenced": False, "not_ready": []}


def cluster(**changes: Any) -> str:
    """An answer about a cluster where all is well, but for these."""
    states = {"all": 3, "leaderless": 0, "below_minimum": 0, "under_replicated": 0}
    found = {"controller": 0, "nodes": [NODE], "stream_states": states | changes.pop("states", {})}
    return json.dumps(found | changes)


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    client.create_stream(name, f"{name}.>")
    yield name
    client.delete_stream(name)


@pytest.fixture
def walk(server: ServerProcess, tmp_path: Path) -> Walk:
    return walker(server.http, tmp_path, is_checked=True)


def test_long_names_are_cut_and_numbers_stay_on_one_line(walk: Walk, stream: str) -> None:
    rows = "[...document.querySelectorAll('table[aria-label=Streams] tbody tr')]"
    wraps = "(cell) => cell.getClientRects().length && cell.scrollHeight > 40"

    async def walking(page: Page) -> None:
        await page.value(MANY_LONG)
        await page.value("location.hash = '#/streams'")
        await page.until(f"{rows}.length == 200")
        lake = await page.value(
            "document.querySelector('td[data-label=\"In the lake\"]').textContent"
        )
        assert lake == "to 123,456,789,012"
        for width, tallest in ((390, 150), (768, 40), (1024, 40), (1400, 40)):
            await page.look(width, 800, phone=width < 500)
            whole = "[health, ...document.querySelectorAll('th[aria-sort]')].every"
            assert await page.value(f"{whole}((each) => each.scrollWidth <= each.clientWidth)"), (
                width
            )
            assert await page.value("document.documentElement.scrollWidth") <= width
            assert await page.value(f"Math.max(...{rows}.map((r) => r.offsetHeight))") <= tallest
            assert (
                await page.value(f"{rows}.flatMap((r) => [...r.cells]).filter({wraps}).length") == 0
            )
            name = "document.querySelector('td[data-label=Name]')"
            assert await page.value(f"{name}.scrollWidth > {name}.clientWidth"), width
            assert len(await page.value(f"{name}.title")) >= 120
            fits = "(cell) => cell.scrollWidth <= cell.clientWidth"
            whole = f"[...document.querySelectorAll('td.n')].every({fits})"
            assert await page.value(whole), width

    walk(walking)


WORST: list[tuple[dict[str, Any], str]] = [
    ({}, "all is well"),
    ({"states": {"under_replicated": 2}}, "2 streams under-replicated"),
    (
        {"states": {"under_replicated": 2, "below_minimum": 1}},
        "1 stream below the minimum of replicas in sync",
    ),
    (
        {"nodes": [NODE | {"not_ready": ["no NATS"]}], "states": {"below_minimum": 1}},
        "node 0: no NATS",
    ),
    ({"nodes": [NODE | {"fenced": True}]}, "1 node not heard"),
    (
        {"nodes": [NODE | {"fenced": True}], "states": {"leaderless": 4}},
        "4 streams without a leader",
    ),
    ({"controller": -1, "states": {"leaderless": 4}}, "no controller"),
]


def test_the_badge_says_the_worst_thing(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        for changes, said in WORST:
            assert await page.value(f"worst({cluster(**changes)})[0]") == said

    walk(walking)


def test_a_long_badge_moves_nothing(walk: Walk) -> None:
    """Whoever is about to press a button presses it."""
    controls = "[$('login'), $('changes'), $('main')]"
    places = f"JSON.stringify({controls}.map((each) => each.getBoundingClientRect()))"
    said = "document.querySelector('#health a').textContent = '● ' + {}"

    async def walking(page: Page) -> None:
        await page.until("document.querySelector('#health a')?.title == 'all is well'")
        # From here on no answer of the server changes what is shown.
        await page.value("window.fetch = () => new Promise(() => {}); turn += 1; healthTurn += 1")
        for width in (360, 390, 768, 1024, 1400):
            await page.look(width, 800, phone=width < 500)
            await page.value(said.format("'all is well'"))
            before = await page.value(places)
            for _, words in WORST:
                await page.value(said.format(json.dumps(words)))
                assert await page.value(places) == before, (width, words)
                assert await page.value("document.documentElement.scrollWidth") <= width

    walk(walking)


def test_the_cards_lead_to_the_streams_that_they_count_and_columns_sort(
    walk: Walk, client: Client, stream: str
) -> None:
    small = f"{stream}-2"
    client.create_stream(small, f"{small}.>")
    client.publish(f"{stream}.a", b"1")
    links = "[...document.querySelectorAll('table[aria-label=Streams] tbody a')]"
    names = f"{links}.map((link) => link.textContent)"

    async def walking(page: Page) -> None:
        cards = "[...document.querySelectorAll('a.card')]"
        await page.value(
            f"{cards}.find((card) => card.textContent.startsWith('Leaderless')).click()"
        )
        await page.until("document.querySelector('#state')?.value == 'leaderless'")
        await page.until("document.querySelector('section').textContent.includes('0 streams')")
        await page.value(f"location.hash = '#/streams?match={stream}'")
        await page.until(f"{names}.length == 2")
        for clicks in ("0", "1"):
            await page.value("document.getElementById('sort-Streams-Records').click()")
            order = [small, stream] if clicks == "0" else [stream, small]
            await page.until(
                f"JSON.stringify({names}) == {json.dumps(json.dumps(order, separators=(',', ':')))}"
            )
        assert (
            await page.value("document.querySelector('th[aria-sort=descending]').innerText")
            == "Records ↓"
        )

    walk(walking)
    client.delete_stream(small)


SQL = "document.querySelector('.whole code')?.textContent"


def test_each_query_of_the_form_is_a_command_that_runs(
    walk: Walk, client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setattr(interrupts, "end_in_foreign_code", lambda: None)
    for number in range(3):
        value = json.dumps({"n": number, "a b": [{"it's": "x"}]})
        client.publish(f"{stream}.a", value, key="k")
    queries: list[str] = []

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/sql?stream={stream}'")
        await page.until(f"{SQL}?.includes('--server')")
        for number in range(await page.value("Object.keys(QUERIES).length")):
            chosen = f"(q => {{ q.selectedIndex = {number}; "
            chosen += "q.dispatchEvent(new Event('input', { bubbles: true })); })"
            await page.value(f"{chosen}(document.querySelector('main select'))")
            for given in ("", "n, a b.0.it's"):
                filled = f"(f => {{ f.value = {json.dumps(given)}; "
                filled += "f.dispatchEvent(new Event('input', { bubbles: true })); })"
                await page.value(
                    f"{filled}(document.querySelector('[placeholder^=\"order, items\"]'))"
                )
                queries.append(await page.value(SQL))

    walk(walking)
    assert len(set(queries)) > 6
    for query in queries:
        done = jetstream(*shlex.split(query)[1:], "--json")
        assert done.returncode == 0, done
        assert done.stdout
    by_field = jetstream(*shlex.split(queries[7])[1:], "--json").stdout
    assert json.loads(by_field.splitlines()[0])["a b.0.it's"] == "x"


AWAY = """
window.fetched = window.fetch;
window.fetch = () => Promise.reject(new TypeError('refused'));
latestCluster.nodes.push({ address: { node_id: 7, http: 'other.example:9295' } },
  { address: { node_id: 8, http: "javascript:alert(1)//" } });
"""


def test_what_a_node_said_last_stays_grey_while_it_is_away(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.value("$('changes').click()")
        await page.until("$('drain-0') && !$('drain-0').disabled")
        await page.value(AWAY)
        await page.until("document.querySelector('main.stale [role=alert]')")
        assert await page.value("$('drain-0').disabled")
        assert await page.value("!!document.querySelector('main table[aria-label=Nodes] tbody tr')")
        links = "[...document.querySelectorAll('main [role=alert] a')].map((a) => a.href)"
        assert await page.value(links) == ["http://other.example:9295/"]
        await page.value("window.fetch = fetched")
        await page.until("!document.querySelector('main.stale')")
        assert not await page.value("!!document.querySelector('main [role=alert]')")
        assert not await page.value("$('drain-0').disabled")
        await page.value("$('changes').click()")

    walk(walking)


def test_records_are_found_by_what_is_in_them_and_laid_out_in_columns(
    walk: Walk, client: Client, stream: str
) -> None:
    client.publish(
        f"{stream}.a", b'{"order": 1, "items": [{"sku": "a-7"}]}', headers={"Trace": "needle"}
    )
    client.publish(f"{stream}.a", b'{"order": 2, "note": "needle"}')
    client.publish(f"{stream}.a", b"\xff\x00needle")
    client.publish(f"{stream}.a", b'{"order": 4}')
    cells = (
        "[...document.querySelectorAll('#messages summary')]"
        ".map((row) => [...row.children].slice(4).map((cell) => cell.textContent).join())"
    )

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until(f"{SHOWN} == '3,2,1,0'")
        assert (
            await page.value("document.querySelector('.heads').innerText.split('\\n').length") == 5
        )
        await page.value("$('contains').value = 'needle', $('show').click()")
        await page.until(f"{SHOWN} == '2,1,0'")
        await page.value(
            "$('contains').value = '', $('columns').value = 'order, items.0.sku', $('show').click()"
        )
        await page.until(f"{SHOWN} == '3,2,1,0'")
        assert await page.value(cells) == ["4,", ",", "2,", "1,a-7"]

    walk(walking)


def test_the_fields_of_a_schema_are_columns_of_the_messages(
    walk: Walk, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", b'{"id": 1, "cost": 2.5}')
    client.publish(f"{stream}.a", b'{"id": 2, "price": 7}')
    client.set_schema(stream, "id int not null, cost double")
    client.set_schema(stream, "id int not null, price double alias cost")
    cells = (
        "[...document.querySelectorAll('#messages summary')]"
        ".map((row) => [...row.children].slice(4).map((cell) => cell.textContent).join()).join(' ')"
    )

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until(f"{SHOWN} == '1,0' && !!$('column-price')")
        text = await page.value("document.querySelector('[aria-label=Schema]').innerText")
        assert "price, or cost" in text
        assert "int not null" in text
        assert await page.value("document.body.innerText.includes('Version 1')")
        await page.value("$('column-price').click(), $('column-id').click()")
        await page.until(f"{cells} == '7,2 2.5,1'")
        await page.value("$('column-price').click(), $('column-id').focus()")
        await page.until(f"{cells} == '2 1'")
        await page.value("document.querySelector('[aria-label=Schema]').id = 'of-before'")
        await page.until("!$('of-before')")
        assert await page.value("document.activeElement.id") == "column-id"

    walk(walking)


@pytest.mark.skipif(typed_json.compiled is None, reason="only compiled code reads Avro")
def test_values_of_avro_are_shown_by_their_fields(walk: Walk, client: Client, stream: str) -> None:
    client.set_schema(stream, "id bigint, note string using avro (7) <id long, note string>")
    client.publish(f"{stream}.a", bytes.fromhex("0000000007 02 0461e2"))
    client.publish(f"{stream}.a", bytes.fromhex("0000000007 04 046f6b"))
    cells = (
        "[...document.querySelectorAll('#messages summary')]"
        ".map((row) => [...row.children].slice(4).map((cell) => cell.textContent).join()).join(' ')"
    )

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until(cells + """ == '{"id":2,"note":"ok"} {"id":1,"note":null}'""")
        await page.value("$('column-note').click(), $('column-id').click()")
        await page.until(f"{cells} == 'ok,2 null,1'")
        await page.value("document.querySelectorAll('details').forEach((row) => row.open = true)")
        shown = "[...document.querySelectorAll('#messages details')].map((d) => d.innerText)"
        await page.until(f"{shown}.every((text) => text.includes('Formatted'))")
        good, bad = await page.value(shown)
        assert '"note": "ok"' in good
        assert "Does not fit" not in good
        assert "Does not fit\nnote is not a string" in bad

    walk(walking)


def test_a_time_range_has_an_end(walk: Walk, client: Client, stream: str) -> None:
    for number in range(3):
        client.publish(f"{stream}.a", b"%d" % number)
    times = [message.timestamp for message in client.fetch(stream)]

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until(f"{SHOWN} == '2,1,0'")
        begin, end = times[0].isoformat(), "2100-01-01"
        for until, found in ((end, "0,1,2"), (begin, "")):
            await page.value(
                f"$('from').value = 'time', $('at').value = {json.dumps(begin)},"
                f"$('until').value = {json.dumps(until)}, $('show').click()"
            )
            await page.until(f"{SHOWN} == {json.dumps(found)}")

    walk(walking)


BIDI = "pay \u202e001\u202c\x1b[31m\u200bnow"


def test_what_no_eye_sees_in_a_record_is_named_and_any_value_can_be_seen_as_bytes(
    walk: Walk, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", BIDI.encode(), key=BIDI, headers={"Trace": "a\u2066b"})
    client.publish(f"{stream}.a", json.dumps({"a": BIDI}, ensure_ascii=False).encode())

    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}'")
        await page.until("document.querySelectorAll('#messages details').length == 2")
        await page.value(
            "document.querySelectorAll('#messages details').forEach((d) => d.open = true)"
        )
        await page.until("document.querySelectorAll('#messages pre').length == 2")
        text = await page.value("$('messages').textContent")
        assert not set(text) & set("\u202e\u202c\x1b\u200b\u2066")
        assert "pay U+202E001U+202CU+001B[31mU+200Bnow" in text
        assert "aU+2066b" in text
        buttons = "[...document.querySelectorAll('details[data-offset=\"0\"] button')]"
        await page.value(f"{buttons}.find((button) => button.innerText == 'Hex').click()")
        shown = await page.value(
            "document.querySelector('details[data-offset=\"0\"] pre').textContent"
        )
        assert shown.startswith("00000000  70 61 79 20 e2 80 ae 30")

    walk(walking)


def test_a_form_takes_what_the_command_takes_and_shows_no_command_that_fails(
    walk: Walk, client: Client, name: str
) -> None:
    shown = "document.querySelector('dialog .command:not([hidden]) code')?.textContent || ''"

    async def walking(page: Page) -> None:
        async def give(field: str, value: str) -> None:
            await page.value(
                f"document.querySelector('dialog [name={field}]').value = {json.dumps(value)},"
                f"document.querySelector('dialog [name={field}]')"
                ".dispatchEvent(new Event('input', { bubbles: true }))"
            )

        await page.value("location.hash = '#/streams', $('changes').click()")
        await page.until("$('create')")
        await page.value("$('create').click()")
        assert await page.value(shown) == ""
        await give("name", "a name")
        assert "letters, digits" in await page.value("$('problem-name').innerText")
        await give("name", name)
        await give("subject", f"{name}.>")
        assert not await page.value("$('problem-name').innerText + $('problem-subject').innerText")
        await give("max_age", "7")
        assert await page.value(shown) == ""
        assert "say 90s, 1h30m or 7d" in await page.value("$('problem-max_age').innerText")
        await give("max_age", "7d")
        await give("max_bytes", "10GiB")
        assert await page.value("$('problem-max_age').innerText") == ""
        assert (await page.value(shown)).endswith(f"{name}.>' --max-age 7d --max-bytes 10GiB")
        assert not await page.value("document.querySelector('dialog details').open")
        await give(
            "segment_bytes", "1KiB"
        )  # A rare setting, which is folded away until it is wrong.
        await page.value("document.querySelector('dialog form').requestSubmit()")
        await page.until("$('problem-segment_bytes').innerText")
        await page.until("document.activeElement.name == 'segment_bytes'")
        await give("segment_bytes", "")
        await page.value("document.querySelector('dialog form').requestSubmit()")
        await page.until("!$('dialog').open")

    walk(walking)
    made = client.describe_stream(name)
    assert (made.max_age, made.max_bytes) == (7 * 86_400, 10 * 2**30)
    client.delete_stream(name)


def test_a_value_is_published_as_it_is_written(walk: Walk, client: Client, stream: str) -> None:
    async def walking(page: Page) -> None:
        await page.value(f"location.hash = '#/streams/{stream}', $('changes').click()")
        await page.until("$('produce')")
        await page.value("$('produce').click()")
        value = "document.querySelector('dialog [name=value]')"
        await page.value(
            f"document.querySelector('dialog [name=subject]').value = '{stream}.a',"
            f" {value}.value = '- 5\\n ', {value}.dispatchEvent("
            "new Event('input', { bubbles: true }))"
        )
        shown = await page.value("document.querySelector('dialog .command code').textContent")
        assert shown.endswith(f" publish -- {stream}.a '- 5\n '")
        await page.value("document.querySelector('dialog form').requestSubmit()")
        await page.until("!$('dialog').open")

    walk(walking)
    assert [each.value for each in client.fetch(stream)] == [b"- 5\n "]


@needs_chromium
def test_durations_and_sizes_are_read_and_written_as_the_command_line_does(walk: Walk) -> None:
    durations = {"90s": 90, "1h30m": 5400, "7d": 604_800, "1.5s": 1.5, "0": 0, "7": None, "d": None}
    sizes = {"512KiB": 524_288, "10GB": 10**10, "17": 17, "1.5MiB": 1_572_864, "x": None}

    async def walking(page: Page) -> None:
        assert await page.value(f"{[*durations]}.map(secondsOf)") == [*durations.values()]
        assert await page.value(f"{[*sizes]}.map(bytesOf)") == [*sizes.values()]
        assert await page.value("[5400, 604800, 1.5, 0].map(durationText)") == [
            "1h30m",
            "7d",
            "1s500ms",
            "0",
        ]
        assert await page.value("[524288, 10000000000, 0].map(bytesText)") == [
            "512KiB",
            "10GB",
            "0",
        ]

    walk(walking)


def test_times_are_in_utc_until_somebody_wants_those_of_the_computer(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.do("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        time = "2026-01-31T12:00:00.500000Z"
        assert await page.value(f"moment('{time}')") == "2026-01-31 12:00:00.500000"
        await page.value("$('clock').click()")
        assert await page.value(f"moment('{time}')") == "2026-01-31 17:30:00.500000"
        assert await page.value("timeOf('2026-01-31T17:30:00')") == 1769860800000
        await page.until("$('status').innerText.endsWith('local time')")

    walk(walking)


def test_an_open_cluster_says_that_it_is_open(walk: Walk) -> None:
    async def walking(page: Page) -> None:
        await page.until("!$('open').hidden")
        await page.value("$('open').click()")
        await page.until("$('main').textContent.includes('This cluster is open')")

    walk(walking)


def test_an_administrator_makes_rules_and_tokens_and_takes_them_back(tmp_path: Path) -> None:
    async def walking(address: str, token: str) -> None:
        async with browser(tmp_path / "browser") as page:

            async def answer(**fields: str) -> None:
                for field, value in fields.items():
                    place = f"document.querySelector('dialog [name={field}]')"
                    await page.value(f"{place}.value = {json.dumps(value)}")
                await page.value("document.querySelector('dialog form').requestSubmit()")

            await page.open(f"{address}/")
            await page.until("document.getElementById('dialog')?.open")
            await answer(token=token)
            await page.until("document.querySelector('table[aria-label=Nodes]')")
            assert await page.value("$('open').hidden")
            await page.value("location.hash = '#/access', $('changes').click()")
            await page.until("$('add-rule')")
            await page.value("$('add-rule').click()")
            await answer(
                principal="user:reports",
                operations="read, describe",
                stream="orders*",
                subject="orders.>",
            )
            await page.until("$('main').textContent.includes('read, describe')")
            await page.value("$('create-token').click()")
            await answer(principal="reports", lifetime="1h")
            await page.until(
                "document.querySelector('dialog code')?.textContent.startsWith('jst_')"
            )
            made = await page.value("document.querySelector('dialog code').textContent")
            await page.value("$('dialog').close(), refresh()")
            assert made not in await page.value("$('main').textContent")
            token_id = made.split("_")[1]
            await page.until(f"$('revoke-{token_id}')")
            await page.value(f"$('revoke-{token_id}').click()")
            await answer()
            await page.until(f"!$('revoke-{token_id}')")
            rules = "[...document.querySelectorAll('table[aria-label=Rules] tr')]"
            rule = f"{rules}.find((row) => row.textContent.includes('orders*'))"
            await page.value(f"{rule}.querySelector('button[id^=remove-]').click()")
            await answer()
            await page.until(f"!({rule})")
            assert page.problems == []

    with secured_server(tmp_path / "data") as server:
        asyncio.run(walking(server.http, server.admin))


def test_who_may_see_nothing_is_not_told_that_all_is_well(walk: Walk) -> None:
    token = "sessionStorage.setItem(TOKEN, 'jst_x')"

    async def walking(page: Page) -> None:
        nobody = cluster(states={"all": 0})
        assert await page.value(f"worst({nobody})[0]") == "all is well"  # An open, empty cluster.
        await page.value(token)
        assert await page.value(f"worst({nobody})[0]") == "nodes are well; you see no streams"
        assert await page.value(f"worst({cluster()})[0]") == "all is well"
        empty = "table('Streams', [], [], () => 0).textContent"
        assert await page.value(empty) == "Nothing here that you may see."
        await page.value("sessionStorage.clear()")
        assert await page.value(empty) == "Nothing here."

    walk(walking)


LONG_RULE = json.dumps(
    {
        "rules": [
            {
                "id": 1, "principal": "user:" + "long-principal-" * 8, "allow": True,
                "operations": ["read"], "stream": "orders-" * 15, "subject": "orders.>",
                "cursor": "",
            }
        ],
        "tokens": [],
    }
)  # fmt: skip


def test_a_rule_can_be_read_whole(walk: Walk) -> None:
    """Also on a phone, where no pointer shows the title of what was cut."""

    async def walking(page: Page) -> None:
        await page.value(
            "window.fetched = window.fetch, window.fetch = async (url, options) => "
            f"url.endsWith('v1/access') ? new Response('{LONG_RULE}') : fetched(url, options)"
        )
        await page.value("location.hash = '#/access'")
        place = "document.querySelector('td[data-label={}]')"
        await page.until(place.format("On"))
        for width, labels in ((390, ("On", "Principal")), (1024, ("On",))):
            await page.look(width, 800, phone=width < 500)
            for label in labels:
                cell = place.format(label)
                assert await page.value(f"{cell}.scrollWidth <= {cell}.clientWidth"), (width, label)

    walk(walking)
