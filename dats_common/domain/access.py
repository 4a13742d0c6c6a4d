"""Who may see what. The caller's identity decides; a request can only narrow it.

Source: design decision "Access": visible = same tenant (or scope public), the scope rule holds, and the tags are
empty, contain `public`, or meet the principal's tags.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dats_common.domain.model import DEFAULT_TENANT, Scope
from dats_common.errors import Forbidden, InvalidInput

PUBLIC_TAG = "public"
ROLES = ("reader", "service", "ingest", "admin")
"""What a caller may do; the table is in docs/security.md."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `None` for projects or tags means: all of the tenant's."""

    tenant_id: str = DEFAULT_TENANT
    user_id: str | None = None
    project_ids: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    roles: frozenset[str] = frozenset()

    def require(self, *roles: str) -> None:
        """Raises: Forbidden: the principal holds none of `roles` and is no `admin`."""
        if not self.roles & {*roles, "admin"}:
            raise Forbidden(f"this call needs the role {' or '.join(map(repr, roles))}")

    def on_behalf_of(
        self, *, tenant_id: str | None, user_id: str | None, user_tags: frozenset[str] | None
    ) -> Principal:
        """The same principal, narrowed to what a request says of its end user.

        Raises: Forbidden: another tenant than the principal's, or a reader naming another user.
        """
        if tenant_id is not None and tenant_id != self.tenant_id:
            raise Forbidden(f"tenant {tenant_id!r} is not yours")
        if user_id is not None and user_id != self.user_id and not self.roles & {"service", "admin"}:
            raise Forbidden("only the role 'service' may act for another user")
        tags = self.tags
        if user_tags is not None:
            tags = user_tags if tags is None else tags & user_tags
        return replace(self, user_id=user_id or self.user_id, tags=tags)


LAPTOP = Principal(roles=frozenset({"service", "ingest"}))
"""The principal while authentication is off: one tenant, all of its projects and tags, but not an admin."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, by its credentials alone; `on_behalf_of` is the only way from it to a principal.

    Attributes:
        actor: for the audit and the rate limit: `key:ID`, `jwt:ISSUER:SUBJECT` or `laptop`; never a secret.
        tenant_ids: the tenants in which it may act, at least one.
        requests_per_minute: its own limit; None: the service's default.
    """

    actor: str
    tenant_ids: tuple[str, ...]
    roles: frozenset[str]
    user_id: str | None = None
    project_ids: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    requests_per_minute: int | None = None

    def on_behalf_of(
        self, *, tenant_id: str | None, user_id: str | None = None, user_tags: frozenset[str] | None = None
    ) -> Principal:
        """The principal of one request, narrowed to what the request says of its end user.

        Raises: Forbidden: a tenant that is not the caller's, or a reader naming another user.
            InvalidInput: the caller has several tenants and the request names none; a guess could show or withdraw
            another tenant's work.
        """
        if tenant_id is None and len(self.tenant_ids) > 1:
            raise InvalidInput("tenant_id: is required, because these credentials are good for several tenants")
        own = Principal(
            tenant_id=tenant_id if tenant_id in self.tenant_ids else self.tenant_ids[0],
            user_id=self.user_id,
            project_ids=self.project_ids,
            tags=self.tags,
            roles=self.roles,
        )
        return own.on_behalf_of(tenant_id=tenant_id, user_id=user_id, user_tags=user_tags)


LAPTOP_CALLER = Caller("laptop", (LAPTOP.tenant_id,), LAPTOP.roles)
"""Everyone, while authentication is off."""


def may_see(
    principal: Principal,
    *,
    tenant_id: str,
    scope: Scope,
    user_id: str | None,
    project_id: str,
    tags: tuple[str, ...],
) -> bool:
    """Whether an artifact with these properties is visible to `principal` (tombstones are judged elsewhere)."""
    if tags and PUBLIC_TAG not in tags and principal.tags is not None and not principal.tags & set(tags):
        return False
    if scope is Scope.PUBLIC:
        return True
    if tenant_id != principal.tenant_id:
        return False
    if scope is Scope.USER:
        return user_id is not None and user_id == principal.user_id
    return principal.project_ids is None or project_id in principal.project_ids
