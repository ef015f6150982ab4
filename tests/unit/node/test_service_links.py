"""What a kubelet sets for a service is no setting; what only looks like it is a mistake."""

from __future__ import annotations

import pytest

from jetstream_server.node.config import ConfigurationError, load
from tests.support.kubelet import service_links

PORTS = {"grpc": 9292, "data": 9293}


@pytest.mark.parametrize("service", ["jetstream", "jetstream-eu", "jetstream-nats-2"])
@pytest.mark.parametrize("address", ["10.96.0.7", "fd00::7"])
def test_what_a_kubelet_sets_stops_no_server(service: str, address: str) -> None:
    links = service_links(service, address, PORTS)
    assert len(links) == 13
    assert load(None, environment=links) == load(None, environment={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JETSTREAM_PORT", "9292"),
        ("JETSTREAM_PORT", "tcp://jetstream:9292"),
        ("JETSTREAM_PORT", "http://10.96.0.7:9292"),
        ("JETSTREAM_PORTS", "tcp://10.96.0.7:9292"),
        ("JETSTREAM_NATS_PORT", "4222"),
        ("JETSTREAM_SERVICE_HOST", "localhost"),
        ("JETSTREAM_SERVICE_HOSTS", "10.96.0.7"),
        ("JETSTREAM_SERVICE_PORT", "auto"),
        ("JETSTREAM_PORT_9292_TCP", "9292"),
        ("JETSTREAM_PORT_9292_TCP_PROTO", "tls"),
        ("JETSTREAM_PORT_9292_TCP_HOST", "10.96.0.7"),
        ("JETSTREAM_CREDENTAL", "10.96.0.7"),
        ("JETSTREAM_NAT__SERVERS", "tcp://10.96.0.7:9292"),
        ("JETSTREAM_SECURTY__ENABLED", "true"),
    ],
)
def test_a_misspelled_setting_is_refused_as_before(name: str, value: str) -> None:
    environment = {**service_links("jetstream", "10.96.0.7", PORTS), name: value}
    with pytest.raises(ConfigurationError, match=f"^{name}: unknown variable"):
        load(None, environment=environment)
