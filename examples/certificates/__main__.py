"""`scripts/make-certs`: an authority, a certificate for each node, and one for a client."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.certificates.authority import DAYS, Authority


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/make-certs",
        description="Make certificates to try TLS with. An authority that is in the folder already "
        f"is used again. All are valid for {DAYS} days.",
    )
    parser.add_argument("--dir", type=Path, default=Path("certs"), help="default: certs")
    parser.add_argument(
        "--nodes", type=int, default=3, metavar="N", help="ids 0 to N-1; default: 3"
    )
    parser.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a host name or address by which the nodes are reached; may be given more than once; "
        "default: localhost, 127.0.0.1 and ::1",
    )
    parser.add_argument(
        "--client", default="client", metavar="NAME", help="the client's name; default: client"
    )
    given = parser.parse_args()
    authority = Authority(given.dir)
    hosts = given.host or ["localhost", "127.0.0.1", "::1"]
    made = [authority.node(node_id, hosts) for node_id in range(given.nodes)]
    made.append(authority.client(given.client))
    print(authority.certificate_file)
    for certificate, key in made:
        print(certificate, key)


main()
