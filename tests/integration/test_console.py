"""The console and the API behind it: what they show, what they change, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from jetstream_client import Client
from jetstream_protocol.settings import FOR_PEOPLE
from jetstream_server.serving.http.console import SCRIPTS
from tests.support.browser import Page, browser, needs_chromium
from tests.support.cluster import TestCluster, running_cluster
from tests.support.command import jetstream
from tests.support.http_calls import call
from tests.support.patient_server import PatientCluster
from tests.support.secured import secured_server
from tests.support.server import ServerProcess

PAGE_BYTES_MAX = 150 * 1024
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


def ask(
    server: ServerProcess, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Status and JSON. body: sent as JSON, unless it is bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if data is not None:
        names.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(f"{server.http}/api/v1/{path}", data=data, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    client.create_stream(name, f"{name}.>")
    yield name
    client.delete_stream(name)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("nodes/99999999999/drain", b"{}"),
        ("nodes/999999999999999999/drain", b"{}"),
        ("streams", rb'{"\ud800": 1}'),
        ("streams/x/alter", rb'{"config": {"\ud800": 1}}'),
        ("streams", b"[" * 10_000),
    ],
)
def test_a_change_that_no_message_can_hold_is_refused(
    server: ServerProcess, path: str, body: bytes
) -> None:
    status, found = ask(server, path, body)
    assert (status, found["error"]["code"]) == (400, "invalid_request")


def test_a_stream_is_created_and_altered_and_a_node_drained(
    server: ServerProcess, client: Client, name: str
) -> None:
    config = {"max_age_us": "3600000000"}
    assert ask(server, "streams", {"name": name, "subject": name, "config": config})[0] == 200
    before = client.describe_stream(name)
    assert before.max_age == 3600
    full_name = f"{name}@{name}"
    change = {"config": {"max_bytes": "1000000"}, "stream_epoch": before.stream_epoch}
    assert ask(server, f"streams/{full_name}/alter", change)[0] == 200
    assert client.describe_stream(name).max_bytes == 1_000_000
    status, found = ask(server, f"streams/{full_name}/alter", change)
    assert (status, found["error"]["code"]) == (400, "precondition_failed"), "it has changed since"
    for draining in (True, False):
        assert ask(server, "nodes/0/drain", {"draining": draining})[0] == 200
        _, cluster = ask(server, "cluster")
        assert cluster["nodes"][0]["draining"] is draining
    assert int(cluster["nodes"][0]["use"]["disk_free_bytes"]) > 0


def test_a_page_of_another_server_can_change_nothing(server: ServerProcess, name: str) -> None:
    body = {"name": name, "subject": name}
    for origin in ("http://evil.example", "http://[::1", "null", ""):
        assert ask(server, "streams", body, Origin=origin)[0] == 403, origin
    simple = json.dumps(body).encode()
    assert ask(server, "streams", simple, Content_Type="text/plain")[0] == 400
    assert ask(server, "streams", b"{")[0] == 400
    assert ask(server, "streams", {"nonsense": 1})[0] == 400
    assert call(server.http, "GET", f"/v1/streams/{name}").status == 404
    assert ask(server, "cluster", Authorization="jetstream-node 1 x")[0] == 401


def test_a_name_that_somebody_points_here_is_refused(server: ServerProcess, name: str) -> None:
    """DNS rebinding: the page and its scripts are of that name, so `Origin` agrees with `Host`."""
    port = server.http.rpartition(":")[2]
    evil = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
    status, found = ask(server, "cluster", **evil)
    assert (status, found["error"]["code"]) == (403, "permission_denied")
    assert "evil.example" in found["error"]["message"]
    assert ask(server, "streams", {"name": name, "subject": name}, **evil)[0] == 403
    assert call(server.http, "GET", f"/v1/streams/{name}", headers=evil).status == 403
    assert call(server.http, "GET", f"/v1/streams/{name}").status == 404
    for own in (f"localhost:{port}", "LOCALHOST", "127.0.0.1", "[::1]:80", "10.1.2.3:9295"):
        assert ask(server, "cluster", Host=own)[0] == 200, own
    request = urllib.request.Request(f"{server.http}/readyz", headers={"Host": "a.balancer"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_nothing_of_the_console_comes_from_elsewhere_or_is_inline(server: ServerProcess) -> None:
    total = 0
    scripts = [f"{name}.js" for name in (*SCRIPTS, "settings")]
    for path in ("", "console.css", *scripts, "icon.svg"):
        with urllib.request.urlopen(f"{server.http}/{path}") as answer:
            body = answer.read().decode()
            policy = answer.headers["Content-Security-Policy"]
        total += len(body)
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        outside = body.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in outside
        assert "https://" not in outside
        assert "innerHTML" not in body
    assert total < PAGE_BYTES_MAX


def test_the_forms_are_made_of_the_table_of_settings(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.http}/settings.js") as answer:
        settings = json.loads(answer.read().decode().partition("SETTINGS = ")[2].rstrip(";\n"))
    told = [each for each in FOR_PEOPLE if each.help]
    assert [each["field"] for each in settings] == [each.field for each in told]
    assert [each["is_alterable"] for each in settings] == [each.alterable for each in told]
    scripts = urllib.request.urlopen(f"{server.http}/changes.js").read().decode()
    form = scripts.partition("function create()")[2].partition("function reassign(")[0]
    assert [each.name for each in told if each.name in form] == []


@needs_chromium
def test_an_operator_looks_searches_reads_and_follows_in_a_browser(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    client.publish(f"{stream}.a", b'{"n": 12345678901234567890}', headers={"Trace": HOSTILE})
    client.publish(f"{stream}.a", HOSTILE.encode(), key=HOSTILE)

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.look()
            await page.open(f"{server.http}/")
            await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
            voter = "document.querySelector('td[data-label=Voter]').innerText"
            assert await page.value(voter) == "yes"
            await _finds_the_stream(page, stream)
            await _reads_what_is_there(page)
            await _follows(page, client, stream)
            await page.look(390, 844, dark=True, phone=True)
            wide = await page.value("document.documentElement.scrollWidth")
            assert wide <= 390, "nothing sticks out on a phone"
            ends = "each => each.getBoundingClientRect().right"
            buttons = f"[...document.querySelectorAll('main button')].map({ends})"
            assert max(await page.value(buttons)) <= 390, "nor is a button cut off"
            assert page.problems == []

    asyncio.run(walk())


async def _finds_the_stream(page: Page, stream: str) -> None:
    """By the keyboard alone."""
    await page.key("s")
    await page.until("document.getElementById('search')")
    await page.key("/")
    for letter in stream[-20:]:
        await page.key(letter)
    await page.until("document.querySelectorAll('table[aria-label=Streams] tbody tr').length == 1")
    assert await page.value("document.activeElement.id") == "search"
    copied = await page.value("document.querySelector('section code').textContent")
    assert copied.endswith("stream list")
    await page.value("document.querySelector('tbody a').focus()")
    await page.key("Enter")
    await page.until("document.querySelectorAll('#messages details').length == 2")


@needs_chromium
def test_who_types_and_goes_elsewhere_at_once_stays_there(
    server: ServerProcess, stream: str, tmp_path: Path
) -> None:
    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams")
            await page.until("document.getElementById('search')")
            await page.value(
                "document.getElementById('search').dispatchEvent(new Event('input')),"
                f"location.hash = '#/streams/{stream}',"
                "new Promise((done) => setTimeout(done, 400))"  # After the search's own timer.
            )
            assert await page.value("location.hash") == f"#/streams/{stream}"

    asyncio.run(walk())


@needs_chromium
def test_what_nobody_knows_of_a_stream_is_unknown_and_no_rate_comes_of_it(tmp_path: Path) -> None:
    def cell(label: str) -> str:
        return f"document.querySelector('td[data-label=\"{label}\"]')?.textContent"

    async def walk(cluster: TestCluster, leader: int, address: str) -> None:
        async with browser(tmp_path / "browser") as page:
            cards = "document.querySelector('.cards')?.textContent"
            await page.open(f"{address}/#/streams")
            await page.until(f"{cell('Records')} == '10'")
            await page.until("[...seen.values()].some((known) => known.samples.length)")
            await asyncio.to_thread(cluster.kill, leader)
            await page.until(f"{cell('Records')} == 'unknown'")
            for label in ("Size", "Lag"):
                assert await page.value(cell(label)) == "unknown", label
            assert await page.value(cell("Records/s")) == "–"
            await page.value("location.hash = '#/streams/orders'")
            await page.until(f"{cards}?.includes('Recordsunknown')")
            shown = await page.value(cards)
            assert shown == (
                "RecordsunknownOffsetsunknownSizeunknownNot committedunknownLast recordunknown"
            )
            assert await page.value(cell("Position")) == "unknown"
            await asyncio.to_thread(cluster.restart, leader)
            await page.until(f"{cards}?.includes('Records10')")
            await page.until("document.querySelector('section b').textContent == '0'")
            rates = "[...seen.values()].flatMap((known) => known.samples)"
            assert await page.value(f"Math.max(...{rates})") == 0
            assert page.problems == []

    with running_cluster(tmp_path / "cluster", kind=PatientCluster) as cluster:
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream("orders", "orders.>", replicas=1)
            for number in range(10):
                client.publish("orders.a", b"%d" % number, msg_id=f"{number}")
            leader = client.describe_stream("orders").leader
        assert leader is not None
        other = next(each for each in cluster.cluster.config["nodes"] if each["id"] != leader)
        asyncio.run(walk(cluster, leader, f"http://{other['http']}"))


async def _reads_what_is_there(page: Page) -> None:
    for each in ("0", "1"):
        await page.value(f"document.querySelector('details[data-offset=\"{each}\"]').open = true")
    await page.until("document.querySelectorAll('#messages pre').length == 2")
    shown = await page.value("document.getElementById('messages').innerText")
    assert '"n": 12345678901234567890' in await page.value(
        "document.querySelector('details[data-offset=\"0\"] pre').innerText"
    )
    assert shown.count(HOSTILE) == 6, "a header, the key in three places, the value in two"
    assert await page.value("document.title") != "broken"
    assert await page.value("document.querySelectorAll('#messages img').length") == 0


async def _follows(page: Page, client: Client, stream: str) -> None:
    await page.value("document.getElementById('tail').click()")
    await page.until("document.querySelector('[role=status].dim').textContent.startsWith('follow')")
    await asyncio.to_thread(client.publish, f"{stream}.live", b"live")
    await page.until("document.querySelector('details[data-offset=\"2\"]')")
    await page.value("document.getElementById('tail').click()")


@needs_chromium
def test_the_command_beside_messages_prints_these_messages(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    for number in range(9):
        time.sleep(0.01 * (number == 6))  # A browser knows milliseconds.
        client.publish(f"{stream}.a", b"%d" % number)
    sixth = client.fetch(stream, 6)[0].timestamp.isoformat()

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.querySelectorAll('#messages details').length == 9")
            await page.value("document.getElementById('limit').value = 2")
            for click, offsets in [
                (_show("last"), [8, 7]),
                (_show("offset", "3"), [3, 4]),
                (
                    "[...document.querySelectorAll('button')].find(b => b.innerText == 'Older')",
                    [1, 2],
                ),
                (
                    "[...document.querySelectorAll('button')].find(b => b.innerText == 'Newer')",
                    [3, 4],
                ),
                (_show("earliest"), [0, 1]),
                (_show("time", sixth), [6, 7]),
            ]:
                await page.value(f"({click}).click()")
                shown = (
                    "[...document.querySelectorAll('#messages details')].map(d => d.dataset.offset)"
                )
                await page.until(f"{shown}.join() == {json.dumps(','.join(map(str, offsets)))}")
                command = shlex.split(await page.value(_COMMAND))
                done = await asyncio.to_thread(jetstream, *command[1:], "--format", "%o ")
                assert sorted(map(int, done.stdout.split())) == sorted(offsets), command

    asyncio.run(walk())


@needs_chromium
def test_json_of_thousands_of_levels_is_shown_as_quickly_as_other_json(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    values = [b"[" * 32_768 + b"]" * 32_768, b"[" + b"1," * 32_000 + b"1]"]
    for value in values:
        client.publish(f"{stream}.a", value)

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.querySelectorAll('#messages details').length == 2")
            for offset, value in enumerate(values):
                details = f"document.querySelector('details[data-offset=\"{offset}\"]')"
                await page.value(f"{details}.open = true")
                await page.until(f"{details}.querySelector('pre')")
                shown = await page.value(f"{details}.querySelector('pre').textContent")
                assert "".join(shown.split()) == value.decode()
                assert len(shown) < 100 * len(value)
            assert page.problems == []

    asyncio.run(walk())


@needs_chromium
def test_a_page_of_the_last_large_records_has_the_newest(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    with client.publisher(f"{stream}.a") as publisher:
        publisher.publish_many([b"x" * 65_536] * 80)
    shown = "[...document.querySelectorAll('#messages details')].map(d => Number(d.dataset.offset))"

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.querySelectorAll('#messages details').length == 50")
            await page.value("document.getElementById('limit').value = 80")
            await page.value(f"({_show('last')}).click()")
            await page.until(f"{shown}.length > 60")
            offsets = await page.value(shown)
            assert offsets == list(range(79, 79 - len(offsets), -1))
            assert len(offsets) < 70
            await page.value(f"({_show('earliest')}).click()")
            await page.until(f"{shown}[0] == 0")
            offsets = await page.value(shown)
            assert offsets == list(range(len(offsets)))
            assert 60 < len(offsets) < 70
            newer = "[...document.querySelectorAll('button')].find(b => b.innerText == 'Newer')"
            await page.value(f"{newer}.click()")
            await page.until(f"{shown}[0] == {len(offsets)}")
            assert (await page.value(shown))[-1] == 79

    asyncio.run(walk())


@needs_chromium
def test_a_value_that_is_not_shown_whole_says_so(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    client.publish(f"{stream}.a", b"x" * 65_536)
    client.publish(f"{stream}.a", b"x" * 65_537)
    client.publish(f"{stream}.a", b"\xff" * 100_000)
    client.publish(f"{stream}.a", b"", headers={"Long": "h" * 70_000})

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.querySelectorAll('#messages details').length == 4")
            wanted = ["", "value, of 65,537", "value, of 100,000", "headers, of 70,"]
            for offset, said in enumerate(wanted):
                details = f"document.querySelector('details[data-offset=\"{offset}\"]')"
                await page.value(f"{details}.open = true")
                await page.until(f"{details}.querySelector('pre')")
                text = await page.value(f"{details}.textContent")
                assert ("Only the first 64 KiB" in text) == bool(said)
                assert said in text
            details = "document.querySelector('details[data-offset=\"1\"]')"
            link = await page.value(f"{details}.querySelector('a').getAttribute('href')")
            row = call(server.http, "GET", f"/{link}").data
            assert (row["offset"], len(row["value"])) == (1, 65_537)
            await page.value(f"{details}.querySelector('a').click()")
            await page.until(f"{details}.querySelector('pre').textContent.length == 65537")
            assert "Only the first" not in await page.value(f"{details}.textContent")
            assert page.problems == []

    asyncio.run(walk())


_COMMAND = "document.querySelector('section[aria-label=Records] .head code').textContent"


def _show(place: str, at: str = "") -> str:
    """The button, once the fields say where."""
    return (
        f"document.getElementById('from').value = {json.dumps(place)},"
        f"document.getElementById('at').value = {json.dumps(at)},"
        "document.getElementById('show')"
    )


@needs_chromium
def test_a_stream_s_page_counts_no_compacted_records_and_says_why_it_takes_none(
    server: ServerProcess, client: Client, name: str, tmp_path: Path
) -> None:
    client.create_stream(name, subject=name, compact=True)
    for value in (b"1", b"2"):
        client.publish(name, value, key="same")
    client.set_stream_readonly(name)

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{name}")
            cards = "document.querySelector('.cards')"
            await page.until(f"{cards} && {cards}.textContent.includes('Records≤ 2Offsets0 – 1')")
            assert await page.value("document.querySelector('h1').innerText") == f"{name} read-only"
            assert page.problems == []

    asyncio.run(walk())


@needs_chromium
def test_a_change_is_made_in_a_browser_only_once_changes_are_allowed(
    server: ServerProcess, client: Client, name: str, tmp_path: Path
) -> None:
    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams")
            await page.until("document.getElementById('search')")
            assert not await page.value("!!document.getElementById('create')")
            await page.value("document.getElementById('changes').click()")
            await page.until("document.getElementById('create')")
            await page.value("document.getElementById('create').click()")
            for field, value in (("name", name), ("subject", f"{name}.>"), ("max_age", "1m")):
                await page.value(
                    f"document.querySelector('dialog [name={field}]').value = {json.dumps(value)}"
                )
            await page.value("document.querySelector('dialog form').requestSubmit()")
            await page.until("!document.getElementById('dialog').open")
            assert page.problems == []

    asyncio.run(walk())
    assert client.describe_stream(name).max_age == 60


@needs_chromium
def test_markup_in_an_address_or_a_subject_stays_text_on_every_page(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    markup = HOSTILE.replace(" ", "/").replace(".", "")  # One token of a subject.
    client.publish(f"{stream}.{markup}", HOSTILE.encode())
    streams = "#/streams"
    addresses = {
        f"{streams}/{stream}": markup,
        f"{streams}/{stream}?subject={quote(stream + '.' + markup)}": markup,
        f"{streams}?match={quote(HOSTILE)}": "",
        f"#/consumers?match={quote(HOSTILE)}": "",
        f"{streams}/{quote(HOSTILE, safe='')}": HOSTILE,
        f"#/groups/{quote(HOSTILE, safe='')}": "",
        f"{streams}/{HOSTILE}": "",
        "#/javascript:document.title='broken'": "",
    }

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/")
            await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
            for address, shown in addresses.items():
                await page.value("document.getElementById('main').innerText = ''; 0")
                await page.value(f"location.hash = {json.dumps(address)}; 0")
                await page.until("document.getElementById('main').innerText.trim()")
                if shown:
                    await page.until(
                        f"document.getElementById('main').textContent.includes({json.dumps(shown)})"
                    )
                assert (
                    await page.value("document.querySelectorAll('main img, main script').length")
                    == 0
                )
                assert await page.value("document.title") != "broken", address
                await page.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert page.problems == []

    asyncio.run(walk())


@needs_chromium
def test_every_kind_of_setting_is_altered_in_a_browser(
    server: ServerProcess, client: Client, stream: str, tmp_path: Path
) -> None:
    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{server.http}/#/streams/{stream}")
            await page.until("document.getElementById('changes')")
            await page.value("document.getElementById('changes').click()")
            await page.until("document.getElementById('alter')")
            await page.value("document.getElementById('alter').click()")
            fields = "document.querySelector('dialog form').elements"
            for name, value in (
                ("max_age", "1.5s"),
                ("max_message_bytes", "9KiB"),
                ("flush", "none"),
            ):
                await page.value(f"{fields}[{name!r}].value = {value!r}")
            await page.value(f"{fields}['compact'].checked = true")
            await page.value("document.querySelector('dialog form').requestSubmit()")
            await page.until("!document.getElementById('dialog').open")
            assert page.problems == []

    # A server that has just begun does not take every setting yet; this call waits until it does.
    client.alter_stream(stream, max_message_bytes="1MiB")
    asyncio.run(walk())
    altered = client.describe_stream(stream)
    assert (altered.max_age, altered.max_message_bytes) == (1.5, 9216)
    assert (altered.flush, altered.compact) == ("none", True)


@needs_chromium
def test_only_a_token_that_the_cluster_knows_is_kept_and_a_missing_right_is_named(
    tmp_path: Path,
) -> None:
    async def walk(address: str, token: str) -> None:
        async with browser(tmp_path / "browser") as page:

            async def enter(entered: str) -> None:
                await page.value(
                    f"document.querySelector('dialog [name=token]').value = {json.dumps(entered)},"
                    "document.querySelector('dialog form').requestSubmit()"
                )

            asked = "document.getElementById('dialog')?.open"
            alert = "document.querySelector('dialog [role=alert]')"
            health = "document.getElementById('health').textContent"
            button = "document.getElementById('login').textContent"
            await page.open(f"{address}/")
            await page.until(f"{asked} && {health} == '● not logged in'")
            assert "jetstream token create" in await page.value(
                "document.querySelector('main').textContent"
            )
            await enter("jst_wrong")
            await page.until(f"{alert}.textContent.includes('the token is not known')")
            await enter("tökén")
            await page.until(f"{alert}.textContent.includes('this is no token')")
            assert await page.value(f"{asked} && {button} == 'Log in'")
            await enter(token)
            await page.until(f"!{asked} && {health} == '● nodes are well; you see no streams'")
            await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
            assert await page.value(button) == "Logged in"
            await page.value("document.getElementById('changes').click()")
            await page.until("document.getElementById('drain-0')")
            await page.value("document.getElementById('drain-0').click()")
            await page.value("document.querySelector('dialog form').requestSubmit()")
            await page.until(
                f"{alert}.textContent.includes('acl add user:reports --allow cluster')"
            )
            assert page.problems == []

    with secured_server(tmp_path / "data") as server:
        with server.client() as admin:
            token = admin.create_token("user:reports").text
        asyncio.run(walk(server.http, token))
