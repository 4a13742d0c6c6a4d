"""To whom a question goes that cannot be answered well enough. Pure. Source: spec 2, "Tag Owner Lookup"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dats_common.domain.access import PUBLIC_TAG

SYSTEM_TAG = "system"
NO_DOCUMENTS = "No relevant documents found"
NO_TAGS = "No specific tags in context"


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """Who is to be asked, and why.

    Attributes:
        fallback: nobody owns the tag: it is the admin.
    """

    tag: str
    owner_user_id: str | None
    owner_email: str | None
    reason: str
    fallback: bool


def primary_tag(tags_of_chunks: Sequence[Sequence[str]]) -> str | None:
    """The tag that most chunks have; of several the one of the best-ranked chunk, then by name. None: there is none.

    Args:
        tags_of_chunks: of each chunk, the best-ranked first.
    """
    count: dict[str, int] = {}
    best: dict[str, int] = {}
    for rank, tags in enumerate(tags_of_chunks):
        for tag in {*tags} - {PUBLIC_TAG}:
            count[tag] = count.get(tag, 0) + 1
            best.setdefault(tag, rank)
    return min(count, key=lambda tag: (-count[tag], best[tag], tag), default=None)


def to_owner(tag: str, *, user_id: str, email: str, why: str) -> RouteTarget:
    """The tag's owner.

    Args:
        why: what made the answer not good enough.
    """
    reason = f"{why} - routing to {tag} owner" if why else f"Routing to {tag} owner"
    return RouteTarget(tag, user_id, email, reason, fallback=False)


def to_admin(*, admin_email: str, why: str) -> RouteTarget:
    """The admin, where nobody else is known."""
    return RouteTarget(SYSTEM_TAG, None, admin_email, f"{why} - routing to admin", fallback=True)


def nothing_found(*, admin_email: str) -> RouteTarget:
    """For a question without a single source, in spec 2's words."""
    return RouteTarget(SYSTEM_TAG, None, admin_email, NO_DOCUMENTS, fallback=True)
