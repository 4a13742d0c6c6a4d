"""Strict mode: what a collection's owner wants refused, because at a large size it would cost the server dearly.

The embedded engine keeps the bounds that our index adapter sets, with the words of a Qdrant server, so that what passes
here passes there. A collection that asks for another bound is refused, not made without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from qdrant_client import grpc

_KEPT = frozenset(
    {
        "enabled",
        "filter_max_conditions",
        "max_query_limit",
        "search_max_batchsize",
        "search_max_oversampling",
        "unindexed_filtering_retrieve",
        "unindexed_filtering_update",
        "upsert_max_batchsize",
    }
)


class Refused(ValueError):
    """The collection's strict mode does not allow the request."""


def unknown_bounds(config: grpc.StrictModeConfig) -> list[str]:
    """Bounds that are set but not kept here."""
    return [field.name for field, _ in config.ListFields() if field.name not in _KEPT]


class StrictMode:
    """The bounds of one collection; without strict mode none."""

    def __init__(self, config: grpc.StrictModeConfig) -> None:
        self._config = config
        self._set = frozenset(field.name for field, _ in config.ListFields()) if config.enabled else frozenset()

    def check_queries(self, queries: Iterable[grpc.QueryPoints], *, indexed: Collection[str]) -> None:
        """Args: indexed: payload fields that have an index. Raises: Refused."""
        wanted = list(queries)
        self._check("search_max_batchsize", len(wanted))
        for query in wanted:
            self.check_read(query, limit=query.limit, indexed=indexed)
            self._check("search_max_oversampling", query.params.quantization.oversampling)
            for prefetch in query.prefetch:
                self._check_prefetch(prefetch, indexed=indexed)

    def _check_prefetch(self, prefetch: grpc.PrefetchQuery, *, indexed: Collection[str]) -> None:
        self.check_read(prefetch, limit=prefetch.limit, indexed=indexed)
        self._check("search_max_oversampling", prefetch.params.quantization.oversampling)
        for inner in prefetch.prefetch:
            self._check_prefetch(inner, indexed=indexed)

    def check_read(
        self,
        request: grpc.QueryPoints | grpc.PrefetchQuery | grpc.ScrollPoints | grpc.CountPoints,
        *,
        limit: int,
        indexed: Collection[str],
    ) -> None:
        """A read's limit and filter. Raises: Refused."""
        self._check("max_query_limit", limit)
        self._check_filter(request.filter, indexed=indexed, bound="unindexed_filtering_retrieve")

    def check_upsert(self, points: int) -> None:
        """Raises: Refused."""
        self._check("upsert_max_batchsize", points)

    def check_deletion(self, selector: grpc.PointsSelector, *, indexed: Collection[str]) -> None:
        """Raises: Refused."""
        self._check_filter(selector.filter, indexed=indexed, bound="unindexed_filtering_update")

    def _check(self, bound: str, asked: float) -> None:
        if bound in self._set and asked > getattr(self._config, bound):
            raise Refused(f"Limit exceeded {asked:g} > {getattr(self._config, bound):g} for {bound!r}")

    def _check_filter(self, where: grpc.Filter, *, indexed: Collection[str], bound: str) -> None:
        if not self._set:
            return
        conditions = list(_conditions(where))
        self._check("filter_max_conditions", len(conditions))
        if bound not in self._set or getattr(self._config, bound):
            return
        for condition in conditions:
            key = condition.field.key or condition.is_empty.key or condition.is_null.key or condition.nested.key
            if key and key not in indexed:
                raise Refused(f"Index required but not found for {key!r}")


def _conditions(where: grpc.Filter) -> Iterator[grpc.Condition]:
    """Every condition that is not itself a filter, at any depth."""
    for condition in (*where.must, *where.should, *where.must_not, *where.min_should.conditions):
        if condition.WhichOneof("condition_one_of") == "filter":
            yield from _conditions(condition.filter)
        else:
            yield condition
