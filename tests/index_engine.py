"""The embedded engine and points to put into it, for every test that needs a real index."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dats_common.adapters.qdrant import QdrantIndex, open_qdrant
from dats_common.domain.access import LAPTOP, Principal
from dats_common.domain.model import ArtifactKey, ChunkRef, SourceMetadata, SparseVector
from dats_common.embedded.qdrant_edge import EngineProcess, open_engine_process
from dats_common.records import Candidate, Fingerprint, Point, SearchFilter

DIMENSION = 8
FINGERPRINT = Fingerprint(
    "test-model", DIMENSION, 256, "test-sparse-1", tuple(map(tuple, np.eye(2, DIMENSION).tolist()))
)
NO_TERMS = SparseVector((), ())


@contextlib.asynccontextmanager
async def running_engine(data_dir: Path | None = None) -> AsyncIterator[EngineProcess]:
    """An engine in a child process, on a free port; over a directory of its own unless one is given."""
    with tempfile.TemporaryDirectory(prefix="dats-engine-") as fresh:
        async with open_engine_process(data_dir or Path(fresh), start_timeout_s=60) as engine:
            yield engine


@contextlib.asynccontextmanager
async def index_on(engine: EngineProcess, *, collection: str | None = None) -> AsyncIterator[QdrantIndex]:
    """A client of one collection of this engine; a new one unless it is named. Not prepared yet."""
    name = collection or f"test-{uuid.uuid4()}"
    async with open_qdrant(host=engine.host, grpc_port=engine.port, collection=name, timeout_s=20) as index:
        yield index


def unit(*direction: float) -> np.ndarray:
    """A vector of `DIMENSION` numbers and length 1 that begins with these."""
    vector = np.zeros(DIMENSION, np.float32)
    vector[: len(direction)] = direction
    return vector / np.linalg.norm(vector)


def terms(*indices: int) -> SparseVector:
    """These terms with weight 1 each."""
    return SparseVector(tuple(sorted(indices)), (1.0,) * len(indices))


def point(
    artifact_id: str,
    *,
    tenant_id: str = "default",
    generation: int = 1,
    chunk: int = 0,
    dense: np.ndarray | None = None,
    sparse: SparseVector = NO_TERMS,
    metadata: SourceMetadata | None = None,
) -> Point:
    """One chunk of an artifact."""
    return Point(
        ChunkRef(ArtifactKey(tenant_id, artifact_id), generation, chunk),
        metadata or SourceMetadata(project_id="p"),
        unit(1) if dense is None else dense,
        sparse,
    )


def seen_by(principal: Principal = LAPTOP, **narrowing: object) -> SearchFilter:
    """What this principal may see, verified or not, unless narrowed."""
    return replace(SearchFilter(principal, verified_only=False), **narrowing)


def artifact_ids(candidates: Iterable[Candidate]) -> list[str]:
    """The artifacts of the candidates, in their order."""
    return [candidate.ref.key.artifact_id for candidate in candidates]
