"""Who may see what. The caller's identity decides; a request can only narrow it.

Source: design decision "Access": visible = same tenant (or scope public), the scope rule holds, and the tags are
empty, contain `public`, or meet the principal's tags.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dats_common.domain.model import DEFAULT_TENANT, Scope
from dats_common.errors import Forbidden

PUBLIC_TAG = "public"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `None` for projects or tags means: all of the tenant's."""

    tenant_id: str = DEFAULT_TENANT
    user_id: str | None = None
    project_ids: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    roles: frozenset[str] = frozenset()

    def require(self, role: str) -> None:
        """Raises: Forbidden: the principal holds neither `role` nor `admin`."""
        if role not in self.roles and "admin" not in self.roles:
            raise Forbidden(f"this call needs the role {role!r}")

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
