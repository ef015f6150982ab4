from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConsumerGroup(_message.Message):
    class Member(_message.Message):
        id: str
        instance: str
        session_timeout_ms: int
        def __init__(self, id: _Optional[str] = ..., instance: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ...) -> None: ...
    class Share(_message.Message):
        stream_id: int
        owner: str
        target: str
        since: int
        def __init__(self, stream_id: _Optional[int] = ..., owner: _Optional[str] = ..., target: _Optional[str] = ..., since: _Optional[int] = ...) -> None: ...
    name: str
    source: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[ConsumerGroup.Member]
    shares: _containers.RepeatedCompositeFieldContainer[ConsumerGroup.Share]
    creator: str
    gone: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    newest_at_first: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ConsumerGroup.Member, _Mapping]]] = ..., shares: _Optional[_Iterable[_Union[ConsumerGroup.Share, _Mapping]]] = ..., creator: _Optional[str] = ..., gone: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., newest_at_first: _Optional[int] = ...) -> None: ...

class GroupHeartbeatRequest(_message.Message):
    group: str
    source: str
    member: ConsumerGroup.Member
    generation: int
    held: _containers.RepeatedScalarFieldContainer[int]
    wait_ms: int
    replaces: str
    def __init__(self, group: _Optional[str] = ..., source: _Optional[str] = ..., member: _Optional[_Union[ConsumerGroup.Member, _Mapping]] = ..., generation: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ..., wait_ms: _Optional[int] = ..., replaces: _Optional[str] = ...) -> None: ...

class GroupHeartbeatResponse(_message.Message):
    generation: int
    assigned: _containers.RepeatedScalarFieldContainer[int]
    replaces: str
    def __init__(self, generation: _Optional[int] = ..., assigned: _Optional[_Iterable[int]] = ..., replaces: _Optional[str] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    group: str
    member_id: str
    source: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    def __init__(self) -> None: ...

class DeleteGroupRequest(_message.Message):
    group: str
    revision: int
    def __init__(self, group: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    def __init__(self) -> None: ...

class ListGroupsRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[ConsumerGroup, _Mapping]]] = ...) -> None: ...
