from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.access import LAPTOP, Principal, may_see
from dats_common.domain.model import Scope
from dats_common.errors import Forbidden

names = st.sampled_from(["x", "y"])
tag_sets = st.frozensets(st.sampled_from(["red", "blue", "public"]))


def oracle(
    principal: Principal, *, tenant_id: str, scope: Scope, user_id: str | None, project_id: str, tags: tuple[str, ...]
) -> bool:
    """The design's sentence, clause by clause: same tenant or public, the scope rule, and one of three tag rules."""
    scope_rule = {
        Scope.PUBLIC: True,
        Scope.USER: user_id is not None and principal.user_id == user_id,
        Scope.PROJECT: principal.project_ids is None or project_id in principal.project_ids,
    }
    tenant_rule = scope == Scope.PUBLIC or tenant_id == principal.tenant_id
    tag_rule = not tags or "public" in tags or principal.tags is None or bool(principal.tags.intersection(tags))
    return tenant_rule and scope_rule[scope] and tag_rule


@given(
    principal=st.builds(
        Principal,
        tenant_id=names,
        user_id=st.none() | names,
        project_ids=st.none() | st.frozensets(names),
        tags=st.none() | tag_sets,
        roles=st.frozensets(st.sampled_from(["reader", "admin"])),
    ),
    tenant_id=names,
    scope=st.sampled_from(Scope),
    user_id=st.none() | names,
    project_id=names,
    tags=tag_sets.map(sorted).map(tuple),
)
def test_visibility_is_exactly_what_the_design_says(principal, **artifact) -> None:
    assert may_see(principal, **artifact) == oracle(principal, **artifact)


@pytest.mark.parametrize(("scope", "mine"), list(product([Scope.USER, Scope.PROJECT], [True, False])))
def test_another_tenants_work_is_visible_only_in_public_scope(scope: Scope, mine: bool) -> None:
    principal = Principal(tenant_id="x", user_id="u")
    tenant_id = "x" if mine else "y"
    assert may_see(principal, tenant_id=tenant_id, scope=scope, user_id="u", project_id="p", tags=()) is mine
    assert may_see(principal, tenant_id=tenant_id, scope=Scope.PUBLIC, user_id=None, project_id="p", tags=())


def test_a_users_artifact_without_user_is_nobodys() -> None:
    assert not may_see(Principal(), tenant_id="default", scope=Scope.USER, user_id=None, project_id="p", tags=())


def test_an_admin_sees_no_more_than_the_filter_says() -> None:
    admin = Principal(roles=frozenset({"admin"}), project_ids=frozenset({"x"}))
    assert not may_see(admin, tenant_id="default", scope=Scope.PROJECT, user_id=None, project_id="y", tags=())


def test_a_tagged_public_artifact_still_needs_the_tag() -> None:
    artifact = {"tenant_id": "x", "scope": Scope.PUBLIC, "user_id": None, "project_id": "p", "tags": ("red",)}
    assert not may_see(Principal(tags=frozenset()), **artifact)
    assert may_see(Principal(tags=frozenset({"red"})), **artifact)


@given(
    own=st.none() | tag_sets,
    asked=st.none() | tag_sets,
    tags=tag_sets.map(sorted).map(tuple),
    user_id=st.none() | names,
)
def test_acting_for_a_user_never_widens_the_tags(own, asked, tags, user_id) -> None:
    service = Principal(tags=own, roles=frozenset({"service"}))
    narrowed = service.on_behalf_of(tenant_id=None, user_id=user_id, user_tags=asked)
    artifact = {"tenant_id": "default", "scope": Scope.PROJECT, "user_id": None, "project_id": "p", "tags": tags}
    assert may_see(narrowed, **artifact) <= may_see(service, **artifact)


@pytest.mark.parametrize(
    ("own", "asked", "left"),
    [
        (None, None, None),
        (None, {"red"}, {"red"}),
        ({"red", "blue"}, None, {"red", "blue"}),
        ({"red", "blue"}, {"red", "green"}, {"red"}),
        ({"red"}, set(), set()),
    ],
)
def test_a_request_keeps_only_the_tags_that_the_caller_has(own, asked, left) -> None:
    def frozen(tags):
        return None if tags is None else frozenset(tags)

    narrowed = Principal(tags=frozen(own)).on_behalf_of(tenant_id=None, user_id=None, user_tags=frozen(asked))
    assert narrowed.tags == frozen(left)


def test_naming_another_tenant_is_forbidden_even_to_a_service() -> None:
    with pytest.raises(Forbidden):
        LAPTOP.on_behalf_of(tenant_id="other", user_id=None, user_tags=None)
    assert LAPTOP.on_behalf_of(tenant_id="default", user_id=None, user_tags=None) == LAPTOP


@pytest.mark.parametrize("role", ["service", "admin"])
def test_a_service_or_admin_may_act_for_a_user(role: str) -> None:
    acting = Principal(roles=frozenset({role})).on_behalf_of(tenant_id=None, user_id="u", user_tags=None)
    assert acting.user_id == "u"


def test_a_reader_may_name_only_itself() -> None:
    reader = Principal(user_id="me", roles=frozenset({"reader"}))
    assert reader.on_behalf_of(tenant_id=None, user_id="me", user_tags=None) == reader
    assert reader.on_behalf_of(tenant_id=None, user_id=None, user_tags=None).user_id == "me"
    with pytest.raises(Forbidden):
        reader.on_behalf_of(tenant_id=None, user_id="you", user_tags=None)


def test_a_role_is_held_by_itself_or_by_an_admin() -> None:
    Principal(roles=frozenset({"ingest"})).require("ingest")
    Principal(roles=frozenset({"admin"})).require("ingest")
    with pytest.raises(Forbidden):
        Principal(roles=frozenset({"reader"})).require("ingest")


def test_the_laptop_may_ingest_and_serve_but_is_no_admin() -> None:
    LAPTOP.require("service")
    LAPTOP.require("ingest")
    with pytest.raises(Forbidden):
        LAPTOP.require("keys")
