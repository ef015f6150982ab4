"""Names of streams and groups, which others resolve: whoever has no right to a name neither joins
nor shadows what has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from jetstream_client import Client, InvalidRequestError, PermissionDeniedError, StreamExistsError
from tests.support.secured import SecuredServer
from tests.support.stages import secured_stage

NAMES = count(1)


server = secured_stage()


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def team() -> str:
    """The name of a team's stream or group, new in each test."""
    return f"team{next(NAMES)}"


def signed_in(server: SecuredServer, admin: Client, principal: str) -> Client:
    return server.client(admin.create_token(principal).text)


@pytest.fixture
def thief(server: SecuredServer, admin: Client) -> Iterator[Client]:
    """May do everything to streams whose name begins with `mine`, on every subject."""
    principal = f"user:thief{next(NAMES)}"
    admin.add_acl(principal, "all", stream="mine*", subject=">")
    with signed_in(server, admin, principal) as client:
        yield client


@pytest.fixture
def landlord(server: SecuredServer, admin: Client) -> Iterator[Client]:
    """May do everything to streams on subjects that begin with `mine`, under every name."""
    principal = f"user:landlord{next(NAMES)}"
    admin.add_acl(principal, "all", stream="*", subject="mine.>")
    with signed_in(server, admin, principal) as client:
        yield client


def test_a_consumer_group_of_a_stream_is_not_given_the_records_of_another(
    admin: Client, thief: Client, landlord: Client, team: str
) -> None:
    admin.create_stream(team, f"{team}.>")
    for stranger in (thief, landlord):
        with pytest.raises((PermissionDeniedError, StreamExistsError)):
            stranger.create_stream("mine-trap", "mine.trap", group=team)
    admin.publish(f"{team}.a", b"ours")
    with admin.consume_group(team, f"{team}-workers") as member:
        assert next(member).value == b"ours"


def test_nobody_joins_a_group_without_the_right_to_its_name(
    admin: Client, thief: Client, landlord: Client, team: str
) -> None:
    for number in range(2):
        admin.create_stream(f"{team}-{number}", f"{team}.>", group=team)
    with pytest.raises(PermissionDeniedError, match="create"):
        thief.create_stream("mine-share", f"{team}.>", group=team)
    with pytest.raises((PermissionDeniedError, StreamExistsError)):
        landlord.create_stream("any", "mine.share", group=team)
    stored = [admin.publish(f"{team}.a", b"%d" % number).stream for number in range(40)]
    assert {*stored} <= {f"{team}-0", f"{team}-1"}


def test_nobody_takes_a_partition_of_a_keyed_group(
    admin: Client, thief: Client, landlord: Client, team: str
) -> None:
    admin.create_group(team, f"{team}.>", streams=2)
    with pytest.raises((PermissionDeniedError, StreamExistsError)):
        thief.create_group(team, f"{team}.>", streams=3)
    for stranger, subject in ((thief, f"{team}.>"), (landlord, "mine.>")):
        with pytest.raises((PermissionDeniedError, StreamExistsError)):
            stranger.create_stream("mine-0", subject, group=team)


def test_nobody_makes_a_name_ambiguous_that_is_another_s(
    admin: Client, landlord: Client, team: str
) -> None:
    admin.create_stream(team, f"{team}.>")
    admin.publish(f"{team}.a", b"ours")
    for allow_same_name in (False, True):
        with pytest.raises(StreamExistsError, match="is taken: choose another one"):
            landlord.create_stream(team, "mine.same", allow_same_name=allow_same_name)
    assert admin.fetch(team)[0].value == b"ours"


def test_a_stream_does_not_get_the_name_of_another_s_group(
    admin: Client, landlord: Client, team: str
) -> None:
    admin.create_stream(f"{team}-0", f"{team}.>", group=team)
    with pytest.raises(StreamExistsError, match="is taken: choose another one"):
        landlord.create_stream(team, "mine.shadow")


def test_whoever_may_create_what_has_the_name_may_share_it(
    server: SecuredServer, admin: Client, team: str
) -> None:
    principal = f"user:{team}"
    admin.add_acl(principal, "all", stream=f"{team}*", subject=f"{team}.>")
    with signed_in(server, admin, principal) as owner:
        for number in range(2):
            owner.create_stream(f"{team}-{number}", f"{team}.a", group=team)
        owner.create_stream(f"{team}-0", f"{team}.a", group=team)
        owner.create_stream(team, f"{team}.b")
        owner.create_stream(team, f"{team}.c", allow_same_name=True)
        owner.create_group(f"{team}-keyed", f"{team}.d.>", streams=8)
        # A right to look tells more of what is in the way.
        admin.create_stream(f"{team}-theirs", "theirs.>")
        admin.add_acl(principal, "describe", stream=f"{team}-theirs", subject="theirs.>")
        with pytest.raises(PermissionDeniedError, match=rf"{team}-theirs@theirs\.>.*`create`"):
            owner.create_stream(f"{team}-theirs", f"{team}.x", allow_same_name=True)
    admin.delete_stream(f"{team}-theirs")


def test_a_restored_stream_takes_no_name_that_is_another_s(
    admin: Client, thief: Client, landlord: Client, team: str
) -> None:
    admin.create_stream(team, f"{team}.>")
    with pytest.raises(PermissionDeniedError):
        thief.create_stream("mine-old", "mine.old", group=team, restoring=True)
    with pytest.raises(StreamExistsError):
        landlord.create_stream(team, "mine.old", allow_same_name=True, restoring=True)


@pytest.mark.parametrize("name", ["*", "mine*", "mine.*", ">", "a b", "mine@x", "__cursors", ""])
def test_no_stream_and_no_group_has_a_wildcard_or_a_name_of_the_server_s_own(
    admin: Client, name: str
) -> None:
    with pytest.raises(InvalidRequestError):
        admin.create_stream(name, "mine.wild")
    with pytest.raises(InvalidRequestError):
        admin.create_stream("mine-wild", "mine.wild", group=name or " ")
    assert not [each for each in admin.list_streams() if each.subject == "mine.wild"]
