"""Where a node has no leaf link: no NATS client asks or hears."""

from __future__ import annotations

from jetstream_protocol.errors import UnavailableError
from jetstream_server.consumers.collector import Delivery
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.deliveries import GivenUp
from jetstream_server.consumers.pulls import Pull, Status
from jetstream_server.consumers.records import Record


class NoOutlet:
    """See the module."""

    has_room = False
    is_cut_off = False
    """There are no NATS clients."""

    async def room(self) -> None:
        raise UnavailableError("NATS is not connected")

    def may_use(self, consumer: Consumer) -> bool:
        return True

    def fits(self, record: Record) -> bool:
        return True

    def reply_length(self, consumer: Consumer, delivery: Delivery) -> int:
        return 0

    def deliver(self, consumer: Consumer, to: bytes, deliveries: list[Delivery]) -> None: ...

    def status(self, consumer: Consumer, status: Status) -> None: ...

    def refuse(self, status: Status) -> None: ...

    def ask(self, consumer: Consumer, question: int) -> None: ...

    def stalled(self, consumer: Consumer, question: int) -> dict[str, object]:
        return {}

    def is_heard(self, to: bytes, group: bytes = b"") -> bool:
        return False

    def unheard(self, pulls: list[Pull]) -> None: ...

    def gave_up(self, consumer: Consumer, message: GivenUp) -> None: ...
