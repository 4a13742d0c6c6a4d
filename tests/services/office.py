"""Where tests get their keys and tokens, and replicas that ask for them."""

from __future__ import annotations

import secrets
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
from rig import Rig

from dats_common.adapters.jwt_tokens import build_jwt_verifier
from dats_common.domain.keys import ENTROPY_BYTES, PlainKey, make_key
from dats_common.ports import KeyStore
from dats_common.records import StoredKey
from services.query.identity import Authenticator, Credentials
from services.query.services import QueryServices

JWT_SECRET = secrets.token_hex(32)


def asks_for(keys: KeyStore, services: QueryServices) -> Authenticator:
    """A replica's authenticator over these keys and the tokens of `token`."""
    tokens = build_jwt_verifier(
        algorithm="HS256", key_file="", secret=JWT_SECRET, issuer="idp", audience="dats-rag", leeway_s=5.0
    )
    return Credentials(
        keys=keys, tokens=tokens, errands=services.errands, metrics=services.metrics, clock=time.monotonic
    )


def token(**claims: Any) -> str:
    """A good token of a reader of the tenant default, unless its claims say otherwise."""
    now = int(time.time())
    good = {"iss": "idp", "aud": "dats-rag", "sub": "alice", "iat": now, "exp": now + 600, "roles": ["reader"]}
    tenant = {} if "tenant_ids" in claims else {"tenant_id": "default"}
    return jwt.encode({**good, **tenant, **claims}, JWT_SECRET, "HS256")


@dataclass
class Office:
    """Makes keys, and replicas that ask for them."""

    rig: Rig
    keys: KeyStore

    async def key(self, *roles: str, valid_s: float | None = None, **grant: Any) -> PlainKey:
        key = make_key(secrets.token_bytes(ENTROPY_BYTES))
        wanted: dict[str, Any] = {"name": "test", "tenant_ids": ("default",), **grant}
        stored = StoredKey(key.key_id, key.secret_hash, roles=frozenset(roles), **wanted)
        await self.keys.create(stored, valid_s=valid_s, actor="cli:test")
        return key

    def replica(self, **changes: Any) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        changes = {"authenticator": self.authenticator, **changes}
        return self.rig.replica(**changes)

    def authenticator(self, services: QueryServices) -> Authenticator:
        return asks_for(self.keys, services)

    async def actions(self) -> list[tuple[str, str]]:
        """Action and reason of the audit, the oldest first, without the making of keys."""
        entries = reversed(await self.keys.audit(limit=1000))
        return [(entry.action, entry.reason) for entry in entries if entry.action != "key_created"]
