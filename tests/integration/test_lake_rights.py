"""The catalog of the lake, with security on: each sender finds the tables that it may read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError

from tests.support.lake_streams import fill, until
from tests.support.secured import SecuredServer, administered


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SecuredServer]:
    (tmp_path / "lake").mkdir()
    server = SecuredServer(tmp_path / "data")
    server.environment["JETSTREAM_LAKE__URL"] = (tmp_path / "lake").as_uri()
    with administered(server):
        yield server


def test_the_catalog_shows_each_sender_its_tables(server: SecuredServer) -> None:
    def catalog(token: str) -> Catalog:
        return load_catalog("lake", type="rest", uri=f"{server.http}/iceberg", token=token)

    with server.client() as admin:
        fill(admin, "mine", count=100)
        for name, subject, lake in (
            ("secret", "secret.>", True), ("twin", "a.>", True), ("twin", "b.>", False),
        ):  # fmt: skip
            admin.create_stream(name, subject, replicas=1, lake=lake, allow_same_name=True)
        token = admin.create_token("user:reader").text
        admin.add_acl("user:reader", "read", stream="mine", subject="mine")
        admin.add_acl("user:reader", "describe", stream="twin", subject="a.>")
        until(lambda: admin.describe_lake("mine").end_offset > 0)
        all_tables = catalog(server.admin).list_tables("jetstream")
        assert [name for _, name in all_tables] == ["mine", "secret", "twin@a.>"]
        with pytest.raises(NoSuchTableError, match="nothing of stream"):
            catalog(server.admin).load_table(("jetstream", "twin@a.>"))
        reader = catalog(token)
        assert [name for _, name in reader.list_tables("jetstream")] == ["mine", "twin"]
        end = admin.describe_lake("mine").end_offset
        rows = reader.load_table("jetstream.mine").scan(row_filter=f"offset < {end}").to_arrow()
        assert rows["offset"].to_pylist() == list(range(end))
        for name in ("secret", "twin", "nothing"):
            with pytest.raises(ForbiddenError):
                reader.load_table(f"jetstream.{name}")
    with pytest.raises(UnauthorizedError):
        catalog("wrong").list_tables("jetstream")
