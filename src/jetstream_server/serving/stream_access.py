"""Finds the stream that a request names, if the caller has the right that the request needs.

Others resolve the names of streams and groups: `fetch("orders")`, `consume_group("orders")`. So a
new stream needs the right to its name and to its group's, on its own subject and on those of all
that have the name already.

A caller does not learn of streams that it may not describe. A request by name is answered in the
same words whether or not the stream exists, unless a rule of the caller's is about subjects of the
stream. A request by id gets "not found". An ambiguous name is resolved among the streams that the
caller may describe.
"""

from __future__ import annotations

from jetstream_protocol.errors import (
    AmbiguousStreamError,
    JetstreamError,
    PermissionDeniedError,
    StreamExistsError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.stream_names import no_stream
from jetstream_protocol.subjects import covers
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.acl import Operation
from jetstream_server.security.audit import Refusals
from jetstream_server.security.identity import Identity


class StreamAccess:
    def __init__(self, access: AccessControl, registry: Registry) -> None:
        self.control = access
        self._registry = registry

    def resolve(
        self,
        identity: Identity,
        operation: Operation,
        ref: common_pb2.StreamRef,
        refusals: Refusals | None = None,
    ) -> StreamMetadata:
        """The stream of a request. refusals: as in AccessControl.denied_error. Raises
        UnauthenticatedError, PermissionDeniedError, and the errors of Tables.stream_of."""
        access = self.control
        if not access.applies_to(identity):
            return self._registry.stream_of(ref)
        try:
            stream = self._registry.stream_of(ref)
            if access.permits(identity, operation, stream):
                return stream
            access.check_current(identity, operation)
        except AmbiguousStreamError:
            stream = self._among_known(identity, operation, ref, refusals)
        except (StreamNotFoundError, UnavailableError):
            access.check_current(identity, operation)
            name = ref.name.partition("@")[0]
            if ref.id or access.may_exist(identity, operation, name):
                group = self._registry.partitions_of(name)
                if all(self.knows(identity, each) for each in group):
                    raise
                raise StreamNotFoundError(no_stream(_as_asked(ref))) from None
            raise access.denied_error(identity, operation, _as_asked(ref), refusals) from None
        if access.allows(identity, operation, stream):
            access.check(identity, operation, stream)
            return stream
        raise self.denied_error(identity, operation, stream, ref, refusals)

    def denied_error(
        self,
        identity: Identity,
        operation: Operation,
        stream: StreamMetadata,
        ref: common_pb2.StreamRef,
        refusals: Refusals | None = None,
    ) -> JetstreamError:
        """Note a refusal in the audit log, and return the error, which tells only what the caller
        may know."""
        is_known = self.knows(identity, stream)
        resource = stream.full_name if is_known or ref.id else _as_asked(ref)
        error = self.control.denied_error(identity, operation, resource, refusals)
        return error if is_known else self._hidden_error(identity, operation, [stream], ref, error)

    def _hidden_error(
        self,
        identity: Identity,
        operation: Operation,
        streams: list[StreamMetadata],
        ref: common_pb2.StreamRef,
        denied: PermissionDeniedError,
    ) -> JetstreamError:
        """The error for streams that the caller may not know of: as if there were none."""
        if ref.id:
            return self._registry.unknown_id_error(ref.id)
        name, _, subject = ref.name.partition("@")
        if not self.control.may_exist(identity, operation, name) or any(
            self.control.concerns(identity, operation, each) for each in streams
        ):
            return denied
        subject = ref.subject or subject
        return StreamNotFoundError(
            f"there is no stream {name}@{subject}" if subject else no_stream(name)
        )

    def resolve_written(
        self, identity: Identity, ref: common_pb2.StreamRef, subject: str
    ) -> StreamMetadata:
        """The stream to which a producer writes on that subject. The right to that subject is
        enough: the stream may have a wider one. A stream on others only is as one that is not
        there, unless the producer may know of it. Raises the errors of `resolve`."""
        access = self.control
        if not access.applies_to(identity):
            return self._registry.stream_of(ref)
        access.check_current(identity, Operation.WRITE)
        try:
            stream = self._registry.stream_of(ref)
        except (AmbiguousStreamError, StreamNotFoundError):
            return self.resolve(identity, Operation.WRITE, ref)
        if access.allows_named(identity, Operation.WRITE, stream.name, subject) and (
            covers(stream.subject, subject) or self.knows(identity, stream)
        ):
            return stream
        raise self.denied_error(identity, Operation.WRITE, stream, ref)

    def knows(self, identity: Identity, stream: StreamMetadata) -> bool:
        """Whether the caller may know that there is such a stream."""
        return self.control.allows(identity, Operation.DESCRIBE, stream)

    def check_commit(
        self,
        identity: Identity,
        stream: StreamMetadata,
        cursor: str,
        refusals: Refusals | None = None,
    ) -> None:
        """Raise PermissionDeniedError unless the caller, which may read the stream, may use the
        cursor or consumer group of that name there. refusals: as in AccessControl.denied_error."""
        access = self.control
        if access.applies_to(identity) and not access.allows(
            identity, Operation.COMMIT, stream, cursor
        ):
            raise access.denied_error(
                identity, Operation.COMMIT, stream.full_name, refusals, cursor
            )

    def check_new(self, identity: Identity, request: pb.CreateStreamRequest) -> int:
        """Raise PermissionDeniedError, or StreamExistsError without details, unless the caller may
        create the stream. Returns the revision for which that was decided; 0: the caller needs no
        right."""
        access, name, subject = self.control, request.name, request.subject
        if not access.applies_to(identity):
            return 0
        for each in dict.fromkeys(filter(None, (name, request.config.group))):
            if not access.allows_named(identity, Operation.CREATE, each, subject):
                raise access.denied_error(identity, Operation.CREATE, f"{each}@{subject}")
            self._check_may_share(identity, each, f"{name}@{subject}")
        return self._registry.revision

    def _check_may_share(self, identity: Identity, name: str, resource: str) -> None:
        """Raise the errors of `check_new` unless the caller may create all that has the name."""
        access = self.control
        by_subject = {stream.subject: stream for stream in self._registry.holders_of(name)}
        for subject, holder in by_subject.items():
            if access.allows_named(identity, Operation.CREATE, name, subject):
                continue
            access.audit.refused(identity, Operation.CREATE, resource, f"the name {name} is taken")
            if not self.knows(identity, holder):
                raise StreamExistsError(f"the name {name!r} is taken: choose another one")
            raise PermissionDeniedError(
                f"the name {name!r} is taken by {holder.full_name}: {identity.principal} may share "
                f"it with the right `{Operation.CREATE}` on {name}@{subject}; choose another name"
            )

    def check_taken(self, identity: Identity, name: str, subject: str) -> None:
        """Raise StreamExistsError if another subject has a stream of that name; without details if
        the caller may not know of one. The metadata's own words for it are part of the replicated
        state, and so must stay as they are."""
        named = self._registry.streams_named(name)
        if not all(self.knows(identity, stream) for stream in named):
            raise StreamExistsError(f"the name {name!r} is taken: choose another one")
        if named and all(stream.subject != subject for stream in named):
            raise StreamExistsError(
                f"the name {name!r} is taken (subject {named[0].subject}): choose another name. "
                "With allow_same_name (--allow-same-name) both may exist; readers must then write "
                "name@subject"
            )

    def name_of(self, ref: common_pb2.StreamRef) -> str:
        """For the audit log: the stream's full name, or the name that the request gives."""
        try:
            return self._registry.stream_of(ref).full_name
        except JetstreamError:
            return _as_asked(ref)

    def _among_known(
        self,
        identity: Identity,
        operation: Operation,
        ref: common_pb2.StreamRef,
        refusals: Refusals | None,
    ) -> StreamMetadata:
        """The stream of an ambiguous name, among those that the caller may describe."""
        self.control.check_current(identity, operation)
        named = self._registry.streams_named(ref.name)
        known = [stream for stream in named if self.knows(identity, stream)]
        if not known:
            denied = self.control.denied_error(identity, operation, _as_asked(ref), refusals)
            raise self._hidden_error(identity, operation, named, ref, denied)
        if len(known) > 1:
            names = tuple(stream.full_name for stream in known)
            raise AmbiguousStreamError(
                f"{ref.name!r} could be any of {', '.join(names)}: name one of them in full", names
            )
        return known[0]


def _as_asked(ref: common_pb2.StreamRef) -> str:
    return f"{ref.name}@{ref.subject}" if ref.subject else ref.name
