"""The routes of `/v1/`, `/api/v1/` and `/iceberg/v1/`."""

from __future__ import annotations

from jetstream_server.clocks import wall_clock
from jetstream_server.serving.http import openapi
from jetstream_server.serving.http.api import Api
from jetstream_server.serving.http.consumers import ConsumersApi
from jetstream_server.serving.http.cursors import CursorsApi
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.groups import GroupsApi
from jetstream_server.serving.http.iceberg import IcebergApi
from jetstream_server.serving.http.last_hour import HistoryApi
from jetstream_server.serving.http.records import RecordsApi
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.http.streams import StreamsApi


def api_routes(gateway: Gateway) -> list[Route]:
    for_everybody = [
        *StreamsApi(gateway).routes(),
        *RecordsApi(gateway, wall_clock).routes(),
        *CursorsApi(gateway, wall_clock).routes(),
    ]
    return [
        *for_everybody,
        openapi.route(for_everybody),
        *Api(gateway).routes(),
        *GroupsApi(gateway, wall_clock).routes(),
        *ConsumersApi(gateway).routes(),
        *HistoryApi(gateway).routes(),
        *IcebergApi(gateway).routes(),
    ]
