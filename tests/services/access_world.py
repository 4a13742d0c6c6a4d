"""A world of artifacts and callers at random, and an oracle of its own that says who may see what.

The oracle is written from the documents alone (docs/security.md) and shares no code with the service.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

TENANTS = ("red", "green", "blue")
USERS = ("ann", "bob", "cid")
PROJECTS = ("p1", "p2", "p3")
TAGS = ("secret", "hr", "legal", "public")
ROLES = ("reader", "service", "ingest", "admin")
MODES = ("vector", "keyword", "hybrid")
WORDS = tuple(a + b + c for a in "bdkmprst" for b in ("ala", "eno", "iru", "omi") for c in ("n", "s", "x", "dor"))


@dataclass(frozen=True)
class Artifact:
    """One approved output. `mark` is a word of its text that no query ever says."""

    number: int
    tenant: str
    artifact_id: str
    scope: str
    user: str | None
    project: str
    tags: tuple[str, ...]
    verified: bool
    words: tuple[str, ...]
    tainted: bool

    @property
    def mark(self) -> str:
        return f"zq{self.number:04d}zq"

    @property
    def content(self) -> str:
        return f"{self.mark} {' '.join(self.words)}"

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant,
            "scope": self.scope,
            "user_id": self.user,
            "project_id": self.project,
            "tags": list(self.tags),
            "verified": self.verified,
            "title": f"title {self.mark}",
            "source_uri": f"https://example.org/{self.mark}",
            "provenance_id": f"prov-{self.mark}",
        }


@dataclass(frozen=True)
class Holder:
    """What a key or a token grants. None means all."""

    tenants: tuple[str, ...]
    roles: frozenset[str]
    user: str | None
    projects: frozenset[str] | None
    tags: frozenset[str] | None


@dataclass(frozen=True)
class Ask:
    """A query as it is sent, and the artifact whose words it uses."""

    body: dict[str, Any] = field(compare=False)
    aimed_at: Artifact


def make_artifacts(rng: random.Random, count: int) -> list[Artifact]:
    """Some share their id with one of another tenant."""
    made: dict[tuple[str, str], Artifact] = {}
    while len(made) < count:
        number = len(made)
        scope = rng.choices(("project", "user", "public"), (6, 3, 1))[0]
        tenant, artifact_id = rng.choice(TENANTS), f"art-{rng.randrange(count)}"
        made.setdefault(
            (tenant, artifact_id),
            Artifact(
                number=number,
                tenant=tenant,
                artifact_id=artifact_id,
                scope=scope,
                user=rng.choice(USERS) if scope == "user" or rng.random() < 0.2 else None,
                project=rng.choice(PROJECTS),
                tags=tuple(rng.sample(TAGS, rng.choices((0, 1, 2), (5, 4, 2))[0])),
                verified=rng.random() < 0.9,
                words=tuple(rng.sample(WORDS, 8)),
                tainted=rng.random() < 0.1,
            ),
        )
    return list(made.values())


def make_holder(rng: random.Random, *, is_token: bool) -> Holder:
    return Holder(
        tenants=tuple(rng.sample(TENANTS, rng.choices((1, 2), (4, 1))[0])),
        roles=frozenset(rng.sample(ROLES, rng.choices((0, 1, 2), (1, 12, 4))[0])),
        # A token always has a subject.
        user=rng.choice(USERS) if is_token or rng.random() < 0.6 else None,
        projects=None if rng.random() < 0.5 else frozenset(rng.sample(PROJECTS, rng.randint(1, 2))),
        tags=None if rng.random() < 0.3 else frozenset(rng.sample(TAGS, rng.randint(0, 2))),
    )


def make_ask(rng: random.Random, holder: Holder, artifacts: list[Artifact]) -> Ask:
    """Mostly what may be asked, aimed as often at what is forbidden as at what is not, sometimes by its id."""
    aimed_at = rng.choice(artifacts)
    known = [item for item in artifacts if may_see(holder, {}, item) and item.verified]
    if known and rng.random() < 0.5:
        aimed_at = rng.choice(known)
    body: dict[str, Any] = {
        "query": " ".join(rng.sample(aimed_at.words, rng.randint(4, 8))),
        "search_mode": rng.choice(MODES),
        "top_k": rng.choice((1, 5, 20, 100)),
        "max_tokens": rng.choice((100, 1000, 10_000)),
    }
    if len(holder.tenants) > 1 or rng.random() < 0.3:
        body["tenant_id"] = rng.choice(holder.tenants)
    if rng.random() < 0.05:
        body["tenant_id"] = rng.choice(TENANTS)
    if rng.random() < 0.2:
        body["user_id"] = rng.choice(USERS)
    if rng.random() < 0.2:
        body["user_tags"] = rng.sample(TAGS, rng.randint(0, 3))
    if rng.random() < 0.1:
        body["project_id"] = rng.choice(PROJECTS)
    filters: dict[str, Any] = {}
    if rng.random() < 0.1:
        filters["artifact_ids"] = [aimed_at.artifact_id, rng.choice(artifacts).artifact_id]
    if rng.random() < 0.1:
        filters["tags"] = rng.sample(TAGS, 2)
    if rng.random() < 0.2:
        filters["verified_only"] = False
    if filters:
        body["filters"] = filters
    return Ask(body, aimed_at)


def refusals(holder: Holder, body: dict[str, Any]) -> set[int]:
    """The statuses with which this may be refused; empty: it must be answered."""
    found: set[int] = set()
    named = body.get("tenant_id")
    if named is None and len(holder.tenants) > 1:
        found.add(422)
    if named is not None and named not in holder.tenants:
        found.add(403)
    if not holder.roles & {"reader", "service", "admin"}:
        found.add(403)
    other = body.get("user_id") not in (None, holder.user)
    if other and not holder.roles & {"service", "admin"}:
        found.add(403)
    return found


def write_refusals(holder: Holder, tenant: str | None, call: str, project: str, scope: str) -> set[int]:
    """The statuses with which a taint or an embed may be refused; empty: it must be done."""
    found: set[int] = set()
    if tenant is None and len(holder.tenants) > 1:
        found.add(422)
    if tenant is not None and tenant not in holder.tenants:
        found.add(403)
    if not holder.roles & {"ingest", "admin"}:
        found.add(403)
    if call == "embed" and scope == "public" and "admin" not in holder.roles:
        found.add(403)
    if call == "embed" and holder.projects is not None and project not in holder.projects:
        found.add(403)
    return found


def may_see(holder: Holder, body: dict[str, Any], item: Artifact) -> bool:
    """Who may see what, sentence by sentence of the documents. `body` must be one that is not refused."""
    clearances = set(TAGS) if holder.tags is None else set(holder.tags)
    if "user_tags" in body:
        clearances &= set(body["user_tags"])
    if item.tainted or (item.tags and "public" not in item.tags and not clearances & set(item.tags)):
        return False
    if item.scope == "public":
        return True
    if item.tenant != (body.get("tenant_id") or holder.tenants[0]):
        return False
    if item.scope == "user":
        return item.user is not None and item.user == (body.get("user_id") or holder.user)
    return holder.projects is None or item.project in holder.projects


def was_asked_for(body: dict[str, Any], item: Artifact) -> bool:
    """Whether the request's own filters want it: no matter of access, and the index's alone."""
    filters = body.get("filters", {})
    return (
        (item.verified or not filters.get("verified_only", True))
        and body.get("project_id", item.project) == item.project
        and item.artifact_id in filters.get("artifact_ids", [item.artifact_id])
        and ("tags" not in filters or bool(set(filters["tags"]) & set(item.tags or ("public",))))
    )
