"""Objects in a bucket: created once, read by ranges, and errors of five kinds without secrets."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

obstore = pytest.importorskip("obstore")

from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError  # noqa: E402
from jetstream_server.lake import bucket_store  # noqa: E402
from jetstream_server.lake.bucket_store import BucketConfig, BucketStore  # noqa: E402
from jetstream_server.lake.stores import (  # noqa: E402
    LazyStore,
    StoreAwayError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
    StoreOptions,
    StoreRefusedError,
)
from tests.support.s3 import SECRET, FaultyServer, faulty_server, s3_server  # noqa: E402


def store_at(address: str, timeout_s: float = 60.0) -> BucketStore:
    return BucketStore.of(
        BucketConfig(
            "s3://lake/some/prefix",
            address,
            access_key_id="AKIDEXAMPLE",
            secret_access_key=SECRET,
            timeout_s=timeout_s,
        )
    )


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server("lake") as address:
        yield address


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> BucketStore:
    if request.param == "memory":
        return BucketStore(obstore.store.MemoryStore(), "some/prefix")
    address: str = request.getfixturevalue("server")
    store = store_at(address)
    for each in list(store.list("")):
        store.delete(each.name)
    return store


@pytest.fixture
def faulty(server: str) -> Iterator[FaultyServer]:
    with faulty_server(server) as proxy:
        yield proxy


def test_what_was_put_is_read_whole_and_by_ranges(store: BucketStore) -> None:
    store.put("a/one", b"0123456789")
    assert store.get("a/one") == b"0123456789"
    assert store.get("a/one", 3, 4) == b"3456"
    assert store.get("a/one", 8) == b"89"
    assert store.get("a/one", 3, 0) == b""


def test_an_object_is_never_written_twice(store: BucketStore) -> None:
    store.put("a/one", b"first")
    with pytest.raises(StoreExistsError):
        store.put("a/one", b"second")
    with pytest.raises(FileExistsError):
        store.put("a/one", b"second")
    assert store.get("a/one") == b"first"


def test_what_is_not_there_is_missing(store: BucketStore) -> None:
    with pytest.raises(StoreMissingError):
        store.get("a/none")
    with pytest.raises(FileNotFoundError):
        store.get("a/none", 0, 4)
    store.delete("a/none")


def test_an_object_that_ends_early_is_not_taken_for_a_whole_one(store: BucketStore) -> None:
    store.put("a/short", b"0123")
    with pytest.raises((CorruptBatchError, StoreAwayError)):
        store.get("a/short", 2, 10)


def test_a_listing_names_what_is_below_a_prefix(store: BucketStore) -> None:
    for name in ("a/1", "a/2", "b/1"):
        store.put(name, b"xy")
    listed = sorted(store.list("a/"))
    assert [(each.name, each.length) for each in listed] == [("a/1", 2), ("a/2", 2)]
    store.delete("a/1")
    assert [each.name for each in store.list("a/")] == ["a/2"]
    store.delete("a/none", "a/2", "a/1", "b/1")
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, StoreRefusedError), (401, StoreRefusedError), (403, StoreRefusedError),
        (404, StoreMissingError), (500, StoreAwayError), (503, StoreAwayError),
        (507, StoreFullError),
    ],
)  # fmt: skip
def test_each_answer_has_its_kind(faulty: FaultyServer, status: int, kind: type[OSError]) -> None:
    faulty.fault = f"status {status}"
    with pytest.raises(kind):
        store_at(faulty.address).get("a/one")


def test_no_error_names_a_credential(faulty: FaultyServer) -> None:
    faulty.fault = "status 403"
    faulty.says = f"<Error><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>{SECRET}</Error>"
    store = store_at(faulty.address)
    for ask in (lambda: store.get("x"), lambda: store.put("x", b""), lambda: list(store.list(""))):
        with pytest.raises(StoreRefusedError) as caught:
            ask()
        assert SECRET not in str(caught.value)
        assert "AKIDEXAMPLE" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_configuration_does_not_show_its_credentials() -> None:
    shown = repr(BucketConfig("s3://b", secret_access_key=SECRET, session_token=SECRET))
    assert SECRET not in shown


@pytest.mark.parametrize("url", ["", "file:///x", "s3://", "http://b", "s3://k:s@b", "s3://b?x=1"])
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        BucketStore.of(BucketConfig(url))


def test_a_put_that_failed_after_the_write_is_not_repeated(
    faulty: FaultyServer, server: str
) -> None:
    faulty.fault = "fail after"
    with pytest.raises(StoreAwayError):
        store_at(faulty.address).put("late/one", b"stored")
    assert store_at(server).get("late/one") == b"stored"


class Recording(FaultyServer):
    """Answers all requests, and keeps their headers."""

    headers: Message

    def meets(self, command: str, path: str, headers: Message) -> str:
        self.headers = headers
        return "status 200"


def test_the_proxy_passes_headers_on_as_they_were_signed() -> None:
    """A server that checks signatures, as moto does not, would refuse others."""
    behind = Recording("")
    thread = threading.Thread(target=behind.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    sent = {"content-type": "application/xml", "host": "store:9000", "x-amz-date": "now"}
    try:
        with faulty_server(behind.address) as proxy:
            request = urllib.request.Request(f"{proxy.address}/lake?delete", b"<Delete/>", sent)
            urllib.request.urlopen(request).close()
    finally:
        behind.shutdown()
        behind.server_close()
        thread.join()
    assert {name: behind.headers.get_all(name) for name in sent} == {
        name: [value] for name, value in sent.items()
    }


def test_an_answer_that_was_cut_is_an_error(faulty: FaultyServer, server: str) -> None:
    store_at(server).put("cut/one", b"x" * 1000)
    faulty.fault = "cut"
    with pytest.raises(StoreAwayError):
        store_at(faulty.address).get("cut/one")


def test_a_store_that_sends_too_slowly_is_given_up(faulty: FaultyServer, server: str) -> None:
    store_at(server).put("slow/one", b"x" * 1000)
    faulty.fault = "slow"
    with pytest.raises(StoreAwayError):
        store_at(faulty.address, timeout_s=0.5).get("slow/one")


def test_a_long_request_may_take_longer(
    faulty: FaultyServer, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "BYTES_IN_TIME", 1000)
    faulty.fault = "late"
    store = store_at(faulty.address, timeout_s=0.5)
    store.put("long/one", bytes(100_000))
    assert store.get("long/one", 0, 100_000) == bytes(100_000)
    with pytest.raises(StoreAwayError):
        store.put("long/two", bytes(1000))


def test_a_store_that_does_not_answer_is_away() -> None:
    with pytest.raises(StoreAwayError):
        store_at("http://127.0.0.1:1", timeout_s=2.0).get("x")


def test_credentials_are_read_again_once_they_are_refused(server: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    options = StoreOptions("s3://lake/lazy", server, credentials_file=str(file))
    store = LazyStore(options)
    with pytest.raises(StoreRefusedError, match="cannot be read"):
        store.get("a/one")
    file.write_text(f"[default]\naws_access_key_id = {SECRET}\n")
    with pytest.raises(StoreRefusedError) as refused:
        store.get("a/one")
    assert "has no aws_access_key_id and aws_secret" in str(refused.value)
    assert SECRET not in str(refused.value)
    file.write_text(f"[default]\naws_access_key_id = A\naws_secret_access_key = {SECRET}%\n")
    store.put("a/one", b"1")
    assert (store.get("a/one"), [each.name for each in store.list("a/")]) == (b"1", ["a/one"])
    assert store.url == "s3://lake/lazy"
