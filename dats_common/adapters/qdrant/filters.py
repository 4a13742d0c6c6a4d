"""Who may see what, and what a caller narrows it to, as Qdrant's filters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dats_common.domain.access import PUBLIC_TAG, Principal
from dats_common.domain.model import ArtifactKey, Scope
from dats_common.records import SearchFilter

if TYPE_CHECKING:
    from qdrant_client import grpc, models


@lru_cache(maxsize=64)  # Callers come again, mostly with the same bounds.
def wire_bounds(where: SearchFilter) -> tuple[grpc.Filter, grpc.SearchParams]:
    """What every leg is bounded by, and by what its terms are weighed: the tenant's documents alone."""
    from qdrant_client import models
    from qdrant_client.conversions.conversion import RestToGrpc

    weighed = models.SearchParams(idf=models.IdfCorpusParams(corpus=_tenant_filter(where.principal)))
    return RestToGrpc.convert_filter(_visible_filter(where)), RestToGrpc.convert_search_params(weighed)


def matches_nothing(where: SearchFilter) -> bool:
    """An empty list of wanted values is met by nothing; servers differ in how they read one."""
    return () in (where.doc_types, where.tags, where.artifact_ids)


def _visible_filter(where: SearchFilter) -> models.Filter:
    """`domain.access.may_see` and the request's narrowing, as one filter."""
    must = [*_access_conditions(where.principal)]
    must += [
        _equals(name, wanted)
        for name, wanted in (("project_id", where.project_id), ("domain", where.domain))
        if wanted is not None
    ]
    must += [
        _any_of(name, wanted)
        for name, wanted in (("doc_type", where.doc_types), ("tags", where.tags), ("artifact_id", where.artifact_ids))
        if wanted is not None
    ]
    if where.verified_only:
        must.append(_equals("verified", True))
    return _all_of(must)


def _access_conditions(principal: Principal) -> list[Any]:
    from qdrant_client import models

    own: list[Any] = []
    if principal.user_id is not None:
        own.append(_all_of([_equals("scope", Scope.USER.value), _equals("user_id", principal.user_id)]))
    if principal.project_ids is None:
        own.append(_equals("scope", Scope.PROJECT.value))
    elif principal.project_ids:
        own.append(_all_of([_equals("scope", Scope.PROJECT.value), _any_of("project_id", principal.project_ids)]))
    either: list[Any] = [_equals("scope", Scope.PUBLIC.value)]
    if own:
        # A filter within a filter is judged for every point: where there is no choice, none is made.
        choice = own if len(own) == 1 else [models.Filter(should=own)]
        either.append(_all_of([_equals("tenant_id", principal.tenant_id), *choice]))
    conditions: list[Any] = [models.Filter(should=either)]
    if principal.tags is not None:
        # Points without tags are stored as public, so that this one condition is the whole rule.
        conditions.append(_any_of("tags", principal.tags | {PUBLIC_TAG}))
    return conditions


def _tenant_filter(principal: Principal) -> models.Filter:
    return _all_of([_equals("tenant_id", principal.tenant_id)])


def generations_filter(key: ArtifactKey, generations: Sequence[int]) -> models.Filter:
    return _all_of(
        [_equals("tenant_id", key.tenant_id), _equals("artifact_id", key.artifact_id), _any_of("gen", generations)]
    )


def keys_filter(keys: Sequence[ArtifactKey]) -> models.Filter:
    from qdrant_client import models

    by_tenant: dict[str, list[str]] = {}
    for key in keys:
        by_tenant.setdefault(key.tenant_id, []).append(key.artifact_id)
    return models.Filter(
        should=[
            _all_of([_equals("tenant_id", tenant), _any_of("artifact_id", artifacts)])
            for tenant, artifacts in by_tenant.items()
        ]
    )


def _all_of(conditions: list[Any]) -> models.Filter:
    from qdrant_client import models

    return models.Filter(must=conditions)


def _equals(name: str, value: str | bool) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def _any_of(name: str, values: Any) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchAny(any=sorted(values)))
