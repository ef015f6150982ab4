"""The pictures of docs/console.md: `scripts/screenshots`. Nothing is asserted; somebody looks.

With a folder, every page is taken as well in three widths, light and dark, with many streams whose
names are long; then a form with a fault, and what the console shows once a node is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeAlias

from examples.cluster.local import LocalCluster, free_port_base, running
from jetstream_client import Client, JetstreamError
from tests.support.browser import CHROMIUM, browser

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTHS = {390: 844, 1024: 768, 1400: 900}
PLACES = {
    "cluster": "#/",
    "streams": "#/streams",
    "stream": "#/streams/orders",
    "consumers": "#/consumers",
    "group": "#/groups/workers",
    "sql": "#/sql",
    "access": "#/access",
}
Work: TypeAlias = Callable[[Client, threading.Event], None]
MANY = 500
SECONDS = 40
"""How long something goes on before the pictures, so that the charts have a shape."""


def main() -> None:
    if CHROMIUM is None:
        sys.exit("Chromium is not installed (Debian: chromium)")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    target.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="jetstream-screenshots-") as folder,
        ExitStack() as stack,
    ):
        cluster = stack.enter_context(running(Path(folder, "nodes"), 3, free_port_base(3)))
        clients = [stack.enter_context(Client(cluster.grpc_addresses)) for _ in range(3)]
        _create(clients[0])
        done = threading.Event()
        for work, client in zip((_read, _serve, _publish), clients, strict=True):
            threading.Thread(target=_steadily, args=(work, client, done), daemon=True).start()
        try:
            time.sleep(2)
            url = f"http://{cluster.config['nodes'][0]['http']}"
            asyncio.run(_take(url, Path(folder, "browser"), target))
            if target != DOCS:
                for number in range(MANY):
                    name = f"{number:03}-" + "a-long-name-" * 10
                    clients[0].create_stream(name[:120], f"many.{number}.>", replicas=1)
                clients[0].commit_cursor("cursor-" + "with-a-long-name-" * 6, "orders", 5)
                asyncio.run(_take_widths(url, Path(folder, "browser-2"), target, cluster))
        finally:
            done.set()  # The end of its client ends what waits for a record.


def _create(client: Client) -> None:
    client.create_stream("orders", "orders.>", replicas=3)
    client.set_schema(
        "orders", "order bigint, price double, items list<struct<sku string, count int>>"
    )
    client.create_stream("prices", "prices", replicas=3)
    client.create_stream("audit-log", "audit.>", replicas=1)
    for number in range(3):
        client.create_stream(f"jobs-{number}", "jobs.>", group="jobs", replicas=3)


def _steadily(work: Work, client: Client, done: threading.Event) -> None:
    """Also while a busy machine, or a killed node, makes calls fail."""
    while not done.is_set():
        with suppress(JetstreamError):
            work(client, done)


def _publish(client: Client, done: threading.Event) -> None:
    number = 0
    while not done.wait(0.03):
        number += 1
        value = '{"order": %d, "price": %.2f, "items": [{"sku": "a-10%d", "count": 3}]}'
        client.publish(
            "orders.eu",
            value % (number, random.uniform(1, 99), number % 3),
            key=str(number % 50),
            headers={"Trace": f"t-{number}"},
        )
        if random.random() < 0.1:
            client.publish("prices", b"12.5")
        if random.random() < 0.15:
            client.publish(f"jobs.{number % 9}", b"{}")


def _read(client: Client, done: threading.Event) -> None:
    with client.consume("orders", cursor="billing", patience=5.0) as consumer:
        client.commit_cursor("audit", "orders", 12)
        for _ in consumer:
            if done.is_set():
                return


def _serve(client: Client, done: threading.Event) -> None:
    with client.consume_group("jobs", group="workers") as consumer:
        for _ in consumer:
            if done.is_set():
                return


async def _take(url: str, profile: Path, target: Path) -> None:
    async with browser(profile) as page:

        async def shot(name: str, path: str, height: int, ready: str, then: str = "0") -> None:
            await page.look(1200, height)
            await page.value(f"location.hash = '{path}'")
            await page.until(ready)
            await page.value(then)
            await asyncio.sleep(1)
            await page.screenshot(target / f"console-{name}.png")

        rows = "document.querySelectorAll('table[aria-label=Streams] tr').length > 5"
        await page.look(1200, 520)
        await page.open(f"{url}/#/streams")
        await page.until(rows)
        await asyncio.sleep(SECONDS)
        await shot("streams", "#/streams", 520, rows)
        await page.look(390, 780, dark=True, phone=True)
        await asyncio.sleep(1)
        await page.screenshot(target / "console-phone.png")
        opened = (
            "document.querySelectorAll('#messages details')[1].open = true,"
            "document.getElementById('messages').closest('section').scrollIntoView(),"
            "window.scrollBy(0, -70)"
        )
        many = "document.querySelectorAll('#messages details').length > 5"
        await shot("messages", "#/streams/orders", 640, many, opened)
        await page.value("scrollTo(0, 0), document.getElementById('changes').click()")
        five = "document.querySelectorAll('main table')[1]?.rows.length > 4"
        await shot("consumers", "#/consumers", 640, five)
        if page.problems:
            sys.exit(f"the browser complained: {page.problems}")


async def _take_widths(url: str, profile: Path, target: Path, cluster: LocalCluster) -> None:
    async with browser(profile) as page:

        async def shots(place: str) -> None:
            for width, height in WIDTHS.items():
                for dark in (False, True):
                    await page.look(width, height, dark=dark, phone=width < 500)
                    await asyncio.sleep(0.3)
                    scheme = "dark" if dark else "light"
                    await page.screenshot(target / f"{place}-{width}-{scheme}.png")

        await page.open(f"{url}/#/streams?match=prices")
        await page.until("document.querySelector('table[aria-label=Streams] tbody tr')")
        for place, path in PLACES.items():
            await page.value(f"location.hash = '{path}'")
            await asyncio.sleep(3)  # Two answers: the charts have begun.
            await shots(place)
        await page.value("location.hash = '#/streams', $('changes').click()")
        await page.until("$('create')")
        await page.value("$('create').click()")
        await page.value(
            "(field => (field.value = 'a name', field.dispatchEvent(new Event('input', "
            "{ bubbles: true }))))(document.querySelector('dialog [name=name]'))"
        )
        await shots("form")
        await page.value("$('dialog').close(), location.hash = '#/'")
        for node, place in ((2, "other-killed"), (0, "own-killed")):
            cluster.kill_node(node)
            await asyncio.sleep(8)
            await shots(place)
        if page.problems:
            sys.exit(f"the browser complained: {page.problems}")


if __name__ == "__main__":
    main()
