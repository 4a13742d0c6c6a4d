"""The same engine without anything of ours around it: what a search would take in the caller's own process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import qdrant_edge as edge

from dats_common.adapters.qdrant.index import TIE_MARGIN
from dats_common.adapters.qdrant.search import Legs
from dats_common.domain.model import SparseVector
from dats_common.embedded import qdrant_translate as translate
from dats_common.records import SearchFilter
from dats_common.settings import Settings
from services.backends import engine_dir


class InProcess:
    """A copy of the shard, opened here."""

    def __init__(self, shard: Any, *, where: SearchFilter, limit: int, dimension: int) -> None:
        self._shard = shard
        self._where = where
        self._limit = limit
        self._dimension = dimension

    def prepared(self, vector: npt.NDArray[np.float32], terms: SparseVector) -> list[Any]:
        """The queries that our adapter sends, as the engine takes them; to make them is not part of the search."""
        legs = Legs(vector.tolist(), terms, self._where, with_dense=True, width=self._limit + TIE_MARGIN)
        dense, terms_of = {"dense": self._dimension}, frozenset({"bm25"})
        return [translate.query(each, dense=dense, sparse=terms_of) for each in legs.requests("")]

    def search(self, *searches: Sequence[Any]) -> None:
        """All of them in one call, queries of one kind side by side."""
        side_by_side = [query for kind in zip(*searches, strict=True) for query in kind]
        self._shard.query_batch(edge.QueryBatchRequest(side_by_side))


@asynccontextmanager
async def open_in_process(
    settings: Settings, *, where: SearchFilter, limit: int, dimension: int
) -> AsyncIterator[InProcess]:
    """Over a copy: the engine that serves owns the original, which nobody may write to meanwhile."""
    (original,) = engine_dir(settings).glob("collections/*/shard")
    with tempfile.TemporaryDirectory(prefix="dats-bench-shard-") as directory:
        copy = Path(directory) / "shard"
        await asyncio.to_thread(shutil.copytree, original, copy)
        shard = edge.EdgeShard.load(str(copy))
        try:
            yield InProcess(shard, where=where, limit=limit, dimension=dimension)
        finally:
            shard.close()
