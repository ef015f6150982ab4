"""A token costs its slow hash once; a wrong one is never taken, and strangers cannot queue up."""

from __future__ import annotations

import asyncio
import random

import pytest

from jetstream_protocol.errors import UnauthenticatedError, UnavailableError
from jetstream_protocol.types import WallUs
from jetstream_server.origins import origin_of_peer
from jetstream_server.security import authenticator as authenticators
from jetstream_server.security import token_text
from jetstream_server.security.authenticator import Authenticator
from jetstream_server.security.state import SecurityState, Token
from tests.support.loops import on_loop

NEW = token_text.new_token(
    random.Random(1).randbytes(token_text.ID_BYTES + token_text.SECRET_BYTES)
)
TOKEN = Token(
    NEW.id,
    "user:x",
    token_text.slow_hash(NEW.text, b"salt" * 4),
    WallUs(0),
    expires_at_us=WallUs(100),
)


class House:
    """An authenticator with its metadata and its clock; counts slow hashes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = SecurityState().with_token(TOKEN)
        self.now = 10
        self.hashes = 0
        verify = token_text.verify

        def counted(text: str, stored: str) -> bool:
            self.hashes += 1
            return verify(text, stored)

        monkeypatch.setattr(token_text, "verify", counted)
        self.authenticator = Authenticator(lambda: self.state, lambda: WallUs(self.now))

    async def verify(self, text: str = NEW.text) -> Token:
        return await self.authenticator.verify(text)


@on_loop
async def test_the_slow_hash_is_computed_once_however_many_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(monkeypatch)
    found = await asyncio.gather(*(house.verify() for _ in range(10)))
    assert found == [TOKEN] * 10
    assert house.hashes == 1


@on_loop
async def test_a_wrong_secret_is_refused_each_time_and_hashed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(monkeypatch)
    wrong = NEW.text[:-3] + "AAA"
    for _ in range(5):
        with pytest.raises(UnauthenticatedError) as refused:
            await house.verify(wrong)
        assert wrong not in str(refused.value)
    assert house.hashes == 1
    assert await house.verify() == TOKEN


@on_loop
async def test_what_is_no_token_or_nobodys_costs_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticators, "MADE_SECONDS", 0.01)
    house = House(monkeypatch)
    other = token_text.new_token(b"x" * (token_text.ID_BYTES + token_text.SECRET_BYTES)).text
    for text in ("", "x", "jst_", other, NEW.text + "A", "jst_" + "0" * 100_000, "jst_\udcff"):
        with pytest.raises(UnauthenticatedError):
            await house.verify(text)
    assert house.hashes == 0


@on_loop
async def test_a_revoked_or_expired_token_is_refused_though_it_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(monkeypatch)
    await house.verify()
    assert house.authenticator.is_valid(TOKEN)
    house.now = 100
    with pytest.raises(UnauthenticatedError, match="expired"):
        await house.verify()
    assert not house.authenticator.is_valid(TOKEN)
    house.now = 10
    house.state = house.state.without_token(TOKEN.id)
    with pytest.raises(UnauthenticatedError, match="not known"):
        await house.verify()
    assert not house.authenticator.is_valid(TOKEN)


@on_loop
async def test_a_token_that_another_node_has_just_made_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticators, "MADE_SECONDS", 3600.0)
    house = House(monkeypatch)
    house.state = before = SecurityState()
    asked = asyncio.ensure_future(house.verify())
    await asyncio.sleep(0)
    house.authenticator.changed()  # Another token, or a rule.
    await asyncio.sleep(0.01)
    assert not asked.done()
    house.state = before.with_token(TOKEN)
    house.authenticator.changed()
    assert await asked == TOKEN
    house.state = before
    refused = asyncio.ensure_future(house.verify())
    await asyncio.sleep(0)
    assert refused.done(), "it was known, so it was revoked: nothing to wait for"
    with pytest.raises(UnauthenticatedError, match="not known"):
        await refused


@on_loop
async def test_so_many_may_wait_for_a_token_and_the_next_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticators, "WAITING_MAX", 3)
    monkeypatch.setattr(authenticators, "MADE_SECONDS", 3600.0)
    house = House(monkeypatch)
    house.state = before = SecurityState()
    asked = [asyncio.ensure_future(house.verify()) for _ in range(4)]
    await asyncio.sleep(0.01)
    assert [each.done() for each in asked] == [False, False, False, True]
    with pytest.raises(UnauthenticatedError, match="not known"):
        await asked[3]
    house.state = before.with_token(TOKEN)
    house.authenticator.changed()
    assert await asyncio.gather(*asked[:3]) == [TOKEN] * 3


@on_loop
async def test_a_token_made_anew_under_the_same_id_does_not_revive_the_old_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(monkeypatch)
    await house.verify()
    again = Token(TOKEN.id, "user:y", token_text.slow_hash("other", b"salt"), WallUs(0), WallUs(0))
    house.state = SecurityState().with_token(again)
    assert not house.authenticator.is_valid(TOKEN)
    with pytest.raises(UnauthenticatedError, match="wrong"):
        await house.verify()


@on_loop
async def test_so_many_may_wait_for_a_hash_and_the_next_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticators, "WAITING_MAX", 3)
    house = House(monkeypatch)
    wrong = [f"{NEW.text[:-3]}A{each}A" for each in "ABCD"]
    found = await asyncio.gather(*map(house.verify, wrong), return_exceptions=True)
    assert [type(each) for each in found] == [UnauthenticatedError] * 3 + [UnavailableError]


def test_a_hash_of_another_kind_is_nobodys() -> None:
    for stored in ("", "plain", "scrypt$x$8$1$c2FsdA==$aGFzaA==", "md5$1$2$3$4$5"):
        assert not token_text.verify(NEW.text, stored)
    assert token_text.id_of(NEW.text) == NEW.id
    assert NEW.text not in repr(TOKEN)
    assert TOKEN.hash not in repr(TOKEN)


QUICK = Token(
    NEW.id, "user:x", token_text.quick_hash(NEW.text), WallUs(0), expires_at_us=WallUs(100)
)


@on_loop
async def test_a_token_with_a_quick_hash_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch)
    house.state = house.state.with_token(QUICK)
    for _ in range(3):
        with pytest.raises(UnauthenticatedError, match="wrong"):
            await house.verify(NEW.text[:-3] + "AAA")
    verifying = house.verify()
    with pytest.raises(StopIteration):  # It is done without waiting for anything.
        verifying.send(None)
    assert len(QUICK.hash) < 60
    assert not token_text.verify(NEW.text, token_text.quick_hash("other"))
    assert not token_text.verify(NEW.text, "sha256$\udcff")


OTHER = token_text.new_token(
    random.Random(2).randbytes(token_text.ID_BYTES + token_text.SECRET_BYTES)
)
OTHER_TOKEN = Token(
    OTHER.id, "user:y", token_text.slow_hash(OTHER.text, b"salt" * 4), WallUs(0), WallUs(0)
)


@on_loop
async def test_a_flood_of_wrong_tokens_from_one_address_keeps_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticators, "WAITING_MAX", 8)
    house = House(monkeypatch)
    house.state = house.state.with_token(OTHER_TOKEN)
    flood = [
        asyncio.ensure_future(house.authenticator.verify(f"{NEW.text[:-4]}{each:04}", "10.0.0.1"))
        for each in range(50)
    ]
    await asyncio.sleep(0)
    assert await house.authenticator.verify(OTHER.text, "10.0.0.2") == OTHER_TOKEN
    assert house.hashes <= 4, "it had its turn after the one that was being computed"
    found = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(each) for each in found} == {UnauthenticatedError, UnavailableError}
    assert await house.authenticator.verify(NEW.text, "10.0.0.1") == TOKEN


@on_loop
async def test_a_flood_of_unknown_tokens_does_not_keep_a_new_one_from_being_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticators, "WAITING_MAX", 8)
    monkeypatch.setattr(authenticators, "MADE_SECONDS", 3600.0)
    house = House(monkeypatch)
    house.state = SecurityState()
    unknown = [token_text.new_token(each.to_bytes(38)).text for each in range(1, 51)]
    flood = [
        asyncio.ensure_future(house.authenticator.verify(each, "10.0.0.1")) for each in unknown
    ]
    await asyncio.sleep(0)
    asked = asyncio.ensure_future(house.authenticator.verify(OTHER.text, "10.0.0.2"))
    await asyncio.sleep(0.01)
    house.state = house.state.with_token(OTHER_TOKEN)
    house.authenticator.changed()
    assert await asked == OTHER_TOKEN
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


@on_loop
async def test_callers_that_give_up_pass_their_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch)
    wrong = [asyncio.ensure_future(house.verify(f"{NEW.text[:-4]}{each:04}")) for each in range(6)]
    await asyncio.sleep(0)
    for each in wrong[::2]:
        each.cancel()
    await asyncio.gather(*wrong, return_exceptions=True)
    assert await asyncio.wait_for(house.verify(), 60) == TOKEN


def test_the_origin_of_a_peer_as_ports_name_it() -> None:
    for peer in ("ipv4:10.0.0.1:40000", "10.0.0.1:40000", "10.0.0.1"):
        assert origin_of_peer(peer) == "10.0.0.1"
    for peer in ("ipv6:%5B2001:db8::1%5D:40000", "2001:db8::2:40000", "2001:db8::3"):
        assert origin_of_peer(peer) == "2001:db8::/64"
    assert origin_of_peer("") == ""
