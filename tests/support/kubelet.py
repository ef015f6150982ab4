"""The variables that a kubelet sets in each container for a service of its namespace."""

from __future__ import annotations


def service_links(service: str, address: str, ports: dict[str, int]) -> dict[str, str]:
    """As `FromServices` in Kubernetes' pkg/kubelet/envvars does it. ports: by name, the first one
    first; all of TCP. A headless service has no address, and gets no variables."""
    name = service.upper().replace("-", "_")
    first = next(iter(ports.values()))
    host = f"[{address}]" if ":" in address else address
    found = {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(first),
        f"{name}_PORT": f"tcp://{host}:{first}",
    }
    for port_name, port in ports.items():
        found[f"{name}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = str(port)
        link = f"{name}_PORT_{port}_TCP"
        found |= {
            link: f"tcp://{host}:{port}",
            f"{link}_PROTO": "tcp",
            f"{link}_PORT": str(port),
            f"{link}_ADDR": address,
        }
    return found
