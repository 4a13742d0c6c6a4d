"""The reranker's twin: the share of the query's terms that a passage holds. Deterministic, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from dats_common.domain import sparse


class MemoryReranker:
    """Implements `ports.Reranker` without a model."""

    model = "shared-terms"

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """See `ports.Reranker`. A query without terms is held by nothing."""
        wanted = frozenset(sparse.term_ids(query))
        return [len(wanted & frozenset(sparse.term_ids(passage))) / max(1, len(wanted)) for passage in passages]

    async def ping(self) -> None:
        """See `ports.Reranker`."""
