"""`dats-rag keys`: making, listing and revoking API keys, straight on the ledger."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dats_common.contracts.fields import Identifier, Label, Tag, TenantId
from dats_common.domain.access import ROLES
from dats_common.domain.keys import ENTROPY_BYTES, make_key
from dats_common.errors import InvalidInput
from dats_common.records import StoredKey
from dats_common.settings import Settings
from services.backends import open_key_store
from services.cli.console import Voice
from services.cli.options import actor

ALL = "*"
_DAY_S = 86_400.0


async def create(settings: Settings, wanted: StoredKey, *, days: float | None, voice: Voice) -> None:
    """Make a key and show it: the only time that anybody sees it. `wanted` says whom it stands for."""
    key = make_key(secrets.token_bytes(ENTROPY_BYTES))
    async with open_key_store(settings) as keys:
        made = await keys.create(
            replace(wanted, key_id=key.key_id, secret_hash=key.secret_hash),
            valid_s=None if days is None else days * _DAY_S,
            actor=actor(),
        )
    voice.result({"key": str(key), **_shown(made)})
    voice.say(str(key))
    voice.note("This is shown once; only a hash of it is kept. Send it as X-API-Key.")


def wanted_key(
    *,
    name: str,
    roles: Sequence[str],
    tenants: Sequence[str],
    projects: Sequence[str],
    tags: Sequence[str],
    user: str | None,
    per_minute: int | None,
) -> StoredKey:
    """A key to be made, checked. Raises: InvalidInput: an unknown role, or a name that is no name."""
    unknown = sorted({*roles} - {*ROLES})
    if unknown:
        raise InvalidInput(f"there is no role {', '.join(unknown)}; there are {', '.join(ROLES)}")
    try:
        return StoredKey(
            key_id="",
            secret_hash="",
            name=TypeAdapter(Label).validate_python(name),
            tenant_ids=tuple(dict.fromkeys(TypeAdapter(list[TenantId]).validate_python(list(tenants)))),
            roles=frozenset(roles),
            user_id=TypeAdapter(Identifier | None).validate_python(user),
            project_ids=frozenset(TypeAdapter(list[Identifier]).validate_python(list(projects))) or None,
            tags=None if ALL in tags else frozenset(TypeAdapter(list[Tag]).validate_python(list(tags))),
            requests_per_minute=per_minute,
        )
    except ValidationError as error:
        raise InvalidInput(error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")) from None


async def show(settings: Settings, *, voice: Voice) -> None:
    """All keys with whom they stand for, revoked and expired ones too."""
    async with open_key_store(settings) as keys:
        found = [_shown(key) for key in await keys.list_keys()]
    voice.result(found)
    columns = ("key_id", "name", "state", "roles", "tenant_ids", "user_id", "expires_at", "last_used_at")
    voice.table(f"{len(found)} keys", columns, [[_cell(each[column]) for column in columns] for each in found])


async def revoke(settings: Settings, key_id: str, *, voice: Voice) -> bool:
    """From now on the key is good nowhere. Returns whether there is such a key."""
    async with open_key_store(settings) as keys:
        known = await keys.revoke(key_id, actor=actor())
    voice.result({"key_id": key_id, "revoked": known})
    voice.say(f"{key_id} is revoked, on every replica" if known else f"there is no key {key_id}")
    return known


def _shown(key: StoredKey) -> dict[str, Any]:
    """A key for people and machines, without the hash."""
    return {
        "key_id": key.key_id,
        "name": key.name,
        "state": key.state,
        "roles": sorted(key.roles),
        "tenant_ids": list(key.tenant_ids),
        "project_ids": [ALL] if key.project_ids is None else sorted(key.project_ids),
        "tags": [ALL] if key.tags is None else sorted(key.tags),
        "user_id": key.user_id,
        "requests_per_minute": key.requests_per_minute,
        "created_at": _moment(key.created_at),
        "expires_at": _moment(key.expires_at),
        "last_used_at": _moment(key.last_used_at),
        "revoked_at": _moment(key.revoked_at),
    }


def _moment(at: int | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="seconds")


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value or "")
