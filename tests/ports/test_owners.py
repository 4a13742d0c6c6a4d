"""Owners of tags on both databases, changed through a replica as admins do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dats_common.adapters.sql.identity import open_key_store
from dats_common.adapters.sql.owners import open_owners
from dats_common.adapters.sql.row_security import Access
from dats_common.errors import InvalidInput
from dats_common.ports import Owners
from dats_common.records import TagOwner, User

ADA, BEN = User("ada", "ada@example.org", "Ada"), User("ben", "ben@example.org")


class Tenant:
    """Owners as one tenant's admin sees them."""

    def __init__(self, owners: Owners, tenant_id: str) -> None:
        self.owners = owners
        self.tenant_id = tenant_id

    async def put(self, users: list[User], tags: list[TagOwner]) -> None:
        await self.owners.put(users, tags, tenant_id=self.tenant_id, actor="key:admin")

    async def owner_of(self, tag: str) -> TagOwner | None:
        return await self.owners.owner_of(tag, tenant_id=self.tenant_id)

    async def tags(self) -> list[TagOwner]:
        return await self.owners.list_tags(tenant_id=self.tenant_id)

    async def users(self) -> list[User]:
        return await self.owners.list_users(tenant_id=self.tenant_id)


@pytest.fixture
async def owners(ledger_url: str) -> AsyncIterator[Owners]:
    async with open_owners(ledger_url, access=Access("query")) as opened:
        yield opened


@pytest.fixture
async def mine(owners: Owners) -> Tenant:
    return Tenant(owners, "mine")


async def audited(ledger_url: str) -> list[tuple[str, str, str | None, str]]:
    async with open_key_store(ledger_url) as keys:
        entries = await keys.audit(limit=9)
    return [(entry.action, entry.actor, entry.tenant_id, entry.reason) for entry in entries]


async def test_owners_are_found_as_they_were_put(mine: Tenant) -> None:
    await mine.put([BEN, ADA], [TagOwner("red", "ada", description="the red one"), TagOwner("blue", None)])
    assert await mine.owner_of("red") == TagOwner("red", "ada", "ada@example.org", "the red one")
    assert await mine.owner_of("blue") == TagOwner("blue", None)
    assert await mine.owner_of("green") is None
    assert [tag.tag for tag in await mine.tags()] == ["blue", "red"]
    assert await mine.users() == [ADA, BEN]


async def test_what_is_put_again_is_replaced_and_the_rest_stays(mine: Tenant) -> None:
    await mine.put([ADA, BEN], [TagOwner("red", "ada", description="old"), TagOwner("blue", "ada")])
    await mine.put([User("ada", "new@example.org")], [TagOwner("red", "ben")])
    assert await mine.tags() == [TagOwner("blue", "ada", "new@example.org"), TagOwner("red", "ben", "ben@example.org")]
    assert await mine.users() == [User("ada", "new@example.org"), BEN]


async def test_an_owner_may_be_known_from_before(mine: Tenant) -> None:
    await mine.put([ADA], [])
    await mine.put([], [TagOwner("red", "ada")])
    assert await mine.owner_of("red") == TagOwner("red", "ada", "ada@example.org")


async def test_a_tag_of_an_owner_whom_nobody_knows_is_refused_and_nothing_is_changed(
    mine: Tenant, ledger_url: str
) -> None:
    with pytest.raises(InvalidInput, match="tag 'blue': there is no user 'cid'"):
        await mine.put([ADA], [TagOwner("red", "ada"), TagOwner("blue", "cid")])
    assert (await mine.users(), await mine.tags()) == ([], [])
    assert await audited(ledger_url) == []


async def test_the_owner_of_another_tenant_is_nobody_here(mine: Tenant, owners: Owners) -> None:
    await Tenant(owners, "yours").put([ADA], [TagOwner("red", "ada")])
    assert (await mine.users(), await mine.tags(), await mine.owner_of("red")) == ([], [], None)
    with pytest.raises(InvalidInput):
        await mine.put([], [TagOwner("red", "ada")])
    assert not await owners.remove_tag("red", tenant_id="mine", actor="me")
    assert not await owners.remove_user("ada", tenant_id="mine", actor="me")
    assert len(await Tenant(owners, "yours").tags()) == 1


async def test_a_removed_user_leaves_the_tags_to_nobody_we_know(mine: Tenant, owners: Owners) -> None:
    await mine.put([ADA], [TagOwner("red", "ada")])
    assert await owners.remove_user("ada", tenant_id="mine", actor="me")
    assert await mine.owner_of("red") == TagOwner("red", "ada", None)
    assert not await owners.remove_user("ada", tenant_id="mine", actor="me")
    await mine.put([ADA], [])
    assert await mine.owner_of("red") == TagOwner("red", "ada", "ada@example.org")


async def test_a_removed_tag_has_no_owner(mine: Tenant, owners: Owners) -> None:
    await mine.put([ADA], [TagOwner("red", "ada")])
    assert await owners.remove_tag("red", tenant_id="mine", actor="me")
    assert await mine.owner_of("red") is None
    assert not await owners.remove_tag("red", tenant_id="mine", actor="me")


async def test_every_change_is_audited_and_what_changed_nothing_is_not(
    mine: Tenant, owners: Owners, ledger_url: str
) -> None:
    await mine.put([ADA], [TagOwner("red", "ada"), TagOwner("blue", None)])
    await owners.remove_tag("red", tenant_id="mine", actor="cli:me")
    await owners.remove_tag("red", tenant_id="mine", actor="cli:me")
    await owners.remove_user("ada", tenant_id="mine", actor="cli:me")
    assert await audited(ledger_url) == [
        ("owners_changed", "cli:me", "mine", "user 'ada' removed"),
        ("owners_changed", "cli:me", "mine", "tag 'red' removed"),
        ("owners_changed", "key:admin", "mine", "1 users and 2 tags set"),
    ]
