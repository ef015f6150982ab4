"""One program that reads, processes or publishes, and is interrupted meanwhile.

    python -m tests.chaos.consumers.program KIND SERVERS READER JOURNAL SEED [INSTANCE]

KIND: `cursor`, `member`, `churner`, `processor` or `sender`. SIGINT raises an exception wherever a
call of the SDK is, as Ctrl-C does; the same program then goes on, with the same object or a new
one, also while it closes something. SIGTERM ends it in good order.

Once a call has returned, nothing is raised before the program has noted what came of it: the record
would not be seen, as docs/consumers.md says.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from threading import Timer
from types import FrameType
from typing import Any, TypeVar

from jetstream_client import (
    Client,
    JetstreamError,
    Message,
    Output,
    PreconditionFailedError,
    UnknownOutcomeError,
)
from jetstream_client.publishing.blocking_publisher import Publisher
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.blocking_group_consumer import GroupConsumer
from tests.chaos.consumers.journal import FENCED, Notes
from tests.chaos.consumers.streams import INPUT, OUTPUT, PARTS, SESSION_SECONDS

T = TypeVar("T")
TIMEOUT_SECONDS = 10.0
BACK_OFFSETS_MAX = 50
OPERATIONS = 40
"""Of one life of a consumer: then it is closed, and opened anew."""
CHURN_SECONDS = (0.2, 2.0)
SEND_PAUSE_SECONDS = 0.1
DELIVERY_SECONDS = 30.0
HANDLING_SECONDS = 0.002
CLOSING_SHARE = 0.02
KEYS = 40
AGAIN_SECONDS = 0.2
PAUSED_SECONDS = 0.05
ENDED_FENCED, ENDED_BY_ERROR = 3, 4
"""Exit codes of a process of one instance."""


class Interrupted(BaseException):
    """By SIGINT, as KeyboardInterrupt is."""


class Ends(BaseException):
    """By SIGTERM."""


def short(stream: str) -> str:
    """Without its subject."""
    return stream.partition("@")[0]


class Program:
    """What all kinds share: the client, the journal, the signals."""

    def __init__(self, servers: str, reader: str, notes: Notes, seed: str, instance: str) -> None:
        self.client = Client(servers, timeout=TIMEOUT_SECONDS)
        self.reader = reader
        self.note = notes.note
        self.dice = Random(seed)
        self.instance = instance
        self.ends = False
        signal.signal(signal.SIGINT, lambda number, frame: self._signalled(frame, Interrupted))
        signal.signal(signal.SIGTERM, lambda number, frame: self._signalled(frame, Ends))
        self.note("began")

    def _signalled(self, frame: FrameType | None, error: type[BaseException]) -> None:
        """Raise if the SDK is at work for `call`, and not this program or its notes. It is told to
        end once: what it then closes is not cut short again and again."""
        if error is Ends:
            if self.ends:
                return
            self.ends = True
        if frame is None or frame.f_code.co_filename == __file__:
            return
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        if Program.call.__code__ in codes and Notes.note.__code__ not in codes:
            raise error

    def later(self, seconds: float, work: Callable[[], object]) -> Timer:
        """Do it in another thread."""

        def noted() -> None:
            try:
                work()
            except JetstreamError as error:
                self.note("error", str(error.code), error.retriable, error.message)

        timer = Timer(seconds, noted)
        timer.start()
        return timer

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """The only place where a signal raises."""
        return work(*arguments)

    def run(self) -> int:
        """One life after the other."""
        while not self.ends:
            try:
                self.live()
            except Interrupted:
                self.note("interrupted")
            except Ends:
                break
            except JetstreamError as error:
                self.note("error", str(error.code), error.retriable, error.message)
                if self.is_one_of_a_name:
                    return ENDED_FENCED if error.code == FENCED else ENDED_BY_ERROR
                time.sleep(AGAIN_SECONDS)
        return 0

    @property
    def is_one_of_a_name(self) -> bool:
        """Such a program ends with its first error, and is never opened again: it would take the
        name from the process that has come after it."""
        return False

    def closes(self, what: Any, error: BaseException | None) -> None:
        """As the end of a `with` block that has ended with `error`. Interrupted, it is sometimes
        closed again, and sometimes nobody comes back to it."""
        while True:
            try:
                self.call(what.__exit__, type(error) if error else None, error, None)
                return
            except Interrupted:
                self.note("interrupted")
                if self.dice.random() < 0.5:
                    return

    def live(self) -> None:
        raise NotImplementedError


class _Reading(Program):
    """Takes records in every way that there is, from whatever `opened` returns."""

    operations = OPERATIONS

    def live(self) -> None:
        consumer = self.call(self.opened)
        self.note("opened")
        try:
            self.read(consumer)
        except BaseException as error:
            self.closes(consumer, error)
            raise
        self.closes(consumer, None)
        self.note("closed")

    def read(self, consumer: Any) -> None:
        operations = self.operations
        batches = consumer.batches(self.dice.choice((None, 5, 100)))
        while (operations > 0 or self.is_one_of_a_name) and not self.ends:
            operations -= 1
            try:
                self.operate(consumer, batches)
            except Interrupted:
                self.note("interrupted")
                if self.dice.random() < 0.3 and not self.is_one_of_a_name:
                    raise

    def opened(self) -> Any:
        raise NotImplementedError

    def operate(self, consumer: Any, batches: Iterator[Any]) -> None:
        if self.dice.random() < 0.05:
            self.commit(consumer)
        if self.dice.random() < 0.5:
            for _ in range(self.dice.randrange(1, 20)):
                message = self.call(next, consumer)
                self.note("got", short(message.stream), message.offset, message.offset)
        else:
            found = self.call(next, batches)
            if len(found):
                self.note("got", short(found.stream), found[0].offset, found[-1].offset)

    def commit(self, consumer: Any) -> None:
        """While nobody can commit, nobody may know whether it is committed: it is safe to go on."""
        try:
            self.call(consumer.commit)
        except UnknownOutcomeError:
            self.note("uncommitted")
        else:
            self.note("committed")


class Cursor(_Reading):
    def opened(self) -> Consumer:
        return self.client.consume(INPUT, cursor=self.reader, on_reset="earliest")

    def operate(self, consumer: Consumer, batches: Iterator[Any]) -> None:
        chance = self.dice.random()
        if chance < 0.05 and consumer.position:
            back = max(0, consumer.position - self.dice.randrange(BACK_OFFSETS_MAX))
            self.note("seeking", back)
            self.call(consumer.seek, back)
            self.note("seeks", back)
        elif chance < 0.15:
            self.later(PAUSED_SECONDS, consumer.resume)
            self.call(consumer.pause)
        super().operate(consumer, batches)


class Member(_Reading):
    def opened(self) -> GroupConsumer:
        return self.client.consume_group(
            PARTS,
            self.reader,
            instance=self.instance,
            session_timeout=SESSION_SECONDS,
            on_reset="earliest",
            on_assigned=lambda names: self.note("assigned", *map(short, names)),
            on_revoked=lambda names: self.note("revoked", *map(short, names)),
        )

    operations = OPERATIONS * 10

    def commit(self, consumer: Any) -> None:
        """Of a stream that is another's by now it is refused; the next record shows the rest."""
        try:
            super().commit(consumer)
        except PreconditionFailedError:
            self.note("uncommitted")

    @property
    def is_one_of_a_name(self) -> bool:
        return bool(self.instance)


class Churner(Member):
    """Joins and leaves all the time."""

    def live(self) -> None:
        consumer = self.call(self.opened)
        self.note("opened")
        closes = self.later(self.dice.uniform(*CHURN_SECONDS), consumer.close)
        try:
            with consumer:
                while (message := self.call(next, consumer, None)) is not None:
                    self.note("got", short(message.stream), message.offset, message.offset)
        finally:
            closes.cancel()
            closes.join()
        self.note("closed")


class Processor(Program):
    """Copies, by `process`. SIGINT ends the processing, which then begins anew."""

    def live(self) -> None:
        self.note("opened")
        self.call(self.process)
        self.note("closed")

    def process(self) -> None:
        """A signal ends it in good order; a second one raises as in any other call."""
        self.client.process(
            PARTS,
            self.handle,
            group=self.reader,
            session_timeout=SESSION_SECONDS,
            concurrency=16,
            on_reset="earliest",
            retries=1_000,
        )

    def handle(self, message: Message) -> Output:
        self.note("handling", short(message.stream), message.offset)
        time.sleep(HANDLING_SECONDS)
        if hash((message.stream, message.offset)) % 50 == 0 and self.dice.random() < 0.5:
            raise ValueError("a record that cannot be handled for now")
        return Output(OUTPUT, f"{short(message.stream)}:{message.offset}", key=message.key)


class Sender(Program):
    """Publishes numbers in batches, and goes on with the next one after an interrupt."""

    number = 0

    def live(self) -> None:
        publisher = self.call(self.opened)
        self.note("opened")
        try:
            while not self.ends and self.dice.random() > CLOSING_SHARE:
                self.send(publisher)
        finally:
            with suppress(JetstreamError):  # Each delivery has told its own.
                self.closes(publisher, None)
        self.note("closed")

    def opened(self) -> Publisher:
        return self.client.publisher(self.reader, delivery_timeout=DELIVERY_SECONDS)

    def send(self, publisher: Publisher) -> None:
        for _ in range(self.dice.randrange(1, 5)):
            number, self.number = self.number, self.number + 1
            key = f"k{self.dice.randrange(KEYS)}" if self.reader == PARTS else None
            self.note("sent", number)
            try:
                delivery = self.call(publisher.send, f"{self.instance}:{number}", key)
            except Interrupted:
                self.note("interrupted", number)
                continue
            delivery.add_done_callback(lambda done, number=number: self.settled(number, done))
        with suppress(Interrupted):
            self.call(time.sleep, SEND_PAUSE_SECONDS * 2 * self.dice.random())

    def settled(self, number: int, done: Any) -> None:
        error = done.exception()
        if error is None:
            result = done.result()
            self.note("acked", number, short(result.stream), result.offset)
        elif isinstance(error, UnknownOutcomeError):
            self.note("unsettled", number)
        else:
            self.note("refused", number, str(getattr(error, "code", "")), repr(error))


KINDS = {
    "cursor": Cursor,
    "member": Member,
    "churner": Churner,
    "processor": Processor,
    "sender": Sender,
}


def main(kind: str, servers: str, reader: str, journal: str, seed: str, instance: str) -> int:
    notes = Notes(journal)
    program = KINDS[kind](servers, reader, notes, seed, instance)
    try:
        with program.client:
            return program.run()
    except Ends:
        return 0
    except Exception as error:
        notes.note("crash", repr(error))
        raise
    finally:
        # Python takes its handlers away before it ends, and a signal would then end it instead.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
