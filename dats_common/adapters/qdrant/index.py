"""The index in Qdrant: one client over gRPC, whether a cluster answers or the embedded engine does.

Two named vectors a point: `dense` (cosine) and `bm25` (term weights; the server adds IDF). The payload holds what
filters need and the chunk's reference, never text. The caller's bounds go into every leg and every prefetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dats_common.adapters.qdrant.collection import Layout, check_fingerprint, creation, payload_indexes
from dats_common.adapters.qdrant.filters import generations_filter, keys_filter, matches_nothing
from dats_common.adapters.qdrant.points import REFERENCE_FIELDS, checked_dense, reference, struct
from dats_common.adapters.qdrant.rim import require_completed, strong_ordering, translated
from dats_common.adapters.qdrant.search import Legs
from dats_common.domain.model import ArtifactKey, ChunkRef, SparseVector
from dats_common.errors import IndexUnavailable
from dats_common.ports import Leg
from dats_common.records import Candidate, Fingerprint, Point, SearchFilter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from qdrant_client import AsyncQdrantClient, grpc, models

POINTS_PER_UPSERT = 128
"""Source: Qdrant's advice of 64 to 256; 128 points of 384 dimensions are about 0.3 MB on the wire."""
SCROLL_PAGE = 1000
KEYS_PER_FILTER = 256
TIE_MARGIN = 16
"""Hits asked for beyond the limit, so that the ones tied at the edge are all seen and cut by our order, not by the
engine's. Where they are not enough the search is repeated with a wider margin, up to `WIDEST_MARGIN`."""
WIDEST_MARGIN = 1024
REMOVAL_CHECKS = 6
REMOVAL_FIRST_WAIT_S = 0.05
ONE_MACHINE = Layout()


@contextlib.asynccontextmanager
async def open_qdrant(
    *,
    collection: str,
    host: str | None = None,
    grpc_port: int = 6334,
    rest_port: int = 6333,
    url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    layout: Layout = ONE_MACHINE,
) -> AsyncIterator[QdrantIndex]:
    """A client of one collection, for this event loop; no connection is made before the first call.

    Args:
        host: name or address; the alternative is `url`, whose scheme https turns TLS on.
        timeout_s: of every call, rounded up to whole seconds (the client's unit).
        layout: of the collection, where it is not there yet.
    """
    from qdrant_client import AsyncQdrantClient

    client = AsyncQdrantClient(
        host=None if url else host,
        url=url,
        port=rest_port,
        grpc_port=grpc_port,
        api_key=api_key,
        https=None if url else False,
        prefer_grpc=True,
        timeout=math.ceil(timeout_s),
        check_compatibility=False,
        grpc_options=_channel_options(host or url or ""),
    )
    try:
        yield QdrantIndex(client, collection, timeout_s=timeout_s, layout=layout)
    finally:
        await client.close()


def _channel_options(address: str) -> dict[str, Any]:
    """A restarted server is found again within a second or two: gRPC's own back-off grows to two minutes."""
    options: dict[str, Any] = {"grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 2000}
    if any(local in address for local in ("127.0.0.1", "localhost", "[::1]")):
        options["grpc.enable_http_proxy"] = 0  # gRPC would send even loopback calls through http_proxy.
    return options


class QdrantIndex:
    """`ports.Index` over one collection of a Qdrant server or of the embedded engine."""

    def __init__(
        self, client: AsyncQdrantClient, collection: str, *, timeout_s: float, layout: Layout = ONE_MACHINE
    ) -> None:
        self._client = client
        self._collection = collection
        self._timeout_s = timeout_s
        self._layout = layout
        self._dimension: int | None = None

    # -- the collection

    async def prepare(self, fingerprint: Fingerprint) -> None:
        """See `ports.Index.prepare`. Also completes the payload indexes that a creation cut short left out."""
        with translated():
            if not await self._client.collection_exists(self._collection):
                await self._create(fingerprint)
            info = await self._client.get_collection(self._collection)
            check_fingerprint(fingerprint, info.config.metadata or {}, self._collection)
            await self._index_payload(present=info.payload_schema)
        self._dimension = fingerprint.dimension

    async def _create(self, fingerprint: Fingerprint) -> None:
        from grpc import StatusCode
        from grpc.aio import AioRpcError

        try:
            await self._client.create_collection(self._collection, **creation(fingerprint, self._layout))
        except AioRpcError as error:
            # Another process made it between our two calls; whether it fits is checked like any other.
            if error.code() is not StatusCode.ALREADY_EXISTS and "already exists" not in (error.details() or ""):
                raise

    async def _index_payload(self, present: Mapping[str, Any]) -> None:
        """Before the first point: a field indexed later slows every search until the server has caught up."""
        for name, schema in payload_indexes():
            if name not in present:
                require_completed(await self._client.create_payload_index(self._collection, name, schema, wait=True))

    async def drop(self) -> None:
        """See `ports.Index.drop`."""
        with translated():
            await self._client.delete_collection(self._collection)

    async def ping(self) -> None:
        """See `ports.Index.ping`."""
        with translated():
            await self._client.info()

    # -- writes

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index.store`. Every point is judged before the first is sent."""
        structs = [struct(point, dimension=self._dimension) for point in points]
        with translated():
            for first in range(0, len(structs), POINTS_PER_UPSERT):
                part = structs[first : first + POINTS_PER_UPSERT]
                require_completed(
                    await self._client.upsert(self._collection, part, wait=True, ordering=strong_ordering())
                )

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """See `ports.Index.remove`. Deletes again until a count finds none, a bounded number of times."""
        if not generations:
            return
        from qdrant_client import models

        doomed = generations_filter(key, generations)
        wait_s = REMOVAL_FIRST_WAIT_S
        for _ in range(REMOVAL_CHECKS):
            with translated():
                selector = models.FilterSelector(filter=doomed)
                require_completed(
                    await self._client.delete(self._collection, selector, wait=True, ordering=strong_ordering())
                )
                left = (await self._client.count(self._collection, count_filter=doomed, exact=True)).count
            if left == 0:
                return
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise IndexUnavailable(f"{left} deleted points still read back after {REMOVAL_CHECKS} deletions")

    # -- reads

    async def search(
        self,
        *,
        dense: npt.NDArray[np.float32],
        sparse: SparseVector | None,
        legs: frozenset[Leg],
        where: SearchFilter,
        limit: int,
    ) -> list[Candidate]:
        """See `ports.Index.search`. Best rank first; IDF counts the principal's tenant alone (server >= 1.19)."""
        if matches_nothing(where) or limit < 1:
            return []
        query = checked_dense(dense, dimension=self._dimension)
        terms = sparse if sparse is not None and sparse.indices and "sparse" in legs else None
        if terms is None and "dense" not in legs:
            return []
        margin = TIE_MARGIN
        while True:
            legs_asked = Legs(query, terms, where, with_dense="dense" in legs, width=limit + margin)
            with translated():
                answers = await self._ask(legs_asked.requests(self._collection))
            hits = legs_asked.read(answers)
            if margin >= WIDEST_MARGIN or not hits.tied_beyond(limit):
                return hits.candidates(limit)
            margin *= 4

    async def _ask(self, requests: Sequence[grpc.QueryPoints]) -> list[Sequence[grpc.ScoredPoint]]:
        """Each request's points as they come: to go through the client's own models costs a tenth of a search."""
        from qdrant_client import grpc

        batch = grpc.QueryBatchPoints(collection_name=self._collection, query_points=requests)
        response = await self._client.grpc_points.QueryBatch(batch, timeout=self._timeout_s)
        return [answer.result for answer in response.result]

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """See `ports.Index.generations`."""
        found: dict[ArtifactKey, set[int]] = {}
        for first in range(0, len(keys), KEYS_PER_FILTER):
            where = keys_filter(keys[first : first + KEYS_PER_FILTER])
            async for page in self._pages(where):
                for ref in page:
                    found.setdefault(ref.key, set()).add(ref.generation)
        return found

    async def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        """See `ports.Index.scan`."""
        async for page in self._pages(None):
            found: dict[ArtifactKey, set[int]] = {}
            for ref in page:
                found.setdefault(ref.key, set()).add(ref.generation)
            yield found

    async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
        """See `ports.IndexInventory`."""
        wanted = [keys[first : first + KEYS_PER_FILTER] for first in range(0, len(keys), KEYS_PER_FILTER)]
        return [ref for part in wanted async for page in self._pages(keys_filter(part)) for ref in page]

    def scan_chunks(self) -> AsyncIterator[list[ChunkRef]]:
        """See `ports.IndexInventory`."""
        return self._pages(None)

    async def _pages(self, where: models.Filter | None) -> AsyncIterator[list[ChunkRef]]:
        offset: Any = None
        while True:
            with translated():
                records, offset = await self._client.scroll(
                    self._collection,
                    scroll_filter=where,
                    limit=SCROLL_PAGE,
                    offset=offset,
                    with_payload=REFERENCE_FIELDS,
                )
            if records:
                yield [reference(record.payload or {}) for record in records]
            if offset is None:
                return

    async def count(self) -> int:
        """See `ports.Index.count`."""
        with translated():
            return (await self._client.count(self._collection, exact=True)).count
