"""A chunk as a point: its names, its vectors, and the payload that filters need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dats_common.domain.access import PUBLIC_TAG
from dats_common.domain.model import ArtifactKey, ChunkRef, SparseVector
from dats_common.errors import InvalidInput
from dats_common.records import Point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from qdrant_client import models

DENSE, SPARSE = "dense", "bm25"
REFERENCE_FIELDS = ["tenant_id", "artifact_id", "gen", "chunk_no"]


def struct(point: Point, *, dimension: int | None) -> models.PointStruct:
    """Raises: InvalidInput: a vector that a server would refuse, or choke on."""
    from qdrant_client import models

    vectors: dict[str, Any] = {DENSE: checked_dense(point.dense, dimension=dimension)}
    if point.sparse.indices:
        indices, values = _checked_sparse(point.sparse)
        vectors[SPARSE] = models.SparseVector(indices=indices, values=values)
    return models.PointStruct(id=point.ref.point_id, vector=vectors, payload=_payload(point))


def _payload(point: Point) -> dict[str, Any]:
    ref, metadata = point.ref, point.metadata
    payload = {
        "tenant_id": ref.key.tenant_id,
        "artifact_id": ref.key.artifact_id,
        "gen": ref.generation,
        "chunk_no": ref.chunk_index,
        "document_id": ref.key.document_id,
        "project_id": metadata.project_id,
        "domain": metadata.domain,
        "doc_type": metadata.doc_type,
        "tags": list(metadata.tags) or [PUBLIC_TAG],
        "verified": metadata.verified,
        "scope": metadata.scope.value,
    }
    if metadata.user_id is not None:
        payload["user_id"] = metadata.user_id
    return payload


def checked_dense(vector: npt.NDArray[np.float32], *, dimension: int | None) -> list[float]:
    """Raises: InvalidInput: not one vector of this length, or a number that is not finite."""
    import numpy as np

    if vector.ndim != 1 or (dimension is not None and len(vector) != dimension):
        raise InvalidInput(f"a dense vector has shape {vector.shape}, expected ({dimension},)")
    if not np.isfinite(vector).all():
        raise InvalidInput("a dense vector holds a number that is not finite")
    values: list[float] = vector.tolist()
    return values


def _checked_sparse(vector: SparseVector) -> tuple[list[int], list[float]]:
    """Raises: InvalidInput: unequal lengths, a term twice, or a weight that is not finite."""
    if len(vector.indices) != len(vector.values):
        raise InvalidInput(f"a sparse vector has {len(vector.indices)} terms but {len(vector.values)} weights")
    if len(set(vector.indices)) != len(vector.indices):
        raise InvalidInput("a sparse vector names a term twice")
    if not all(map(math.isfinite, vector.values)):
        raise InvalidInput("a sparse vector holds a weight that is not finite")
    return list(vector.indices), list(vector.values)


def reference(payload: Mapping[str, Any]) -> ChunkRef:
    key = ArtifactKey(payload["tenant_id"], payload["artifact_id"])
    return ChunkRef(key, generation=payload["gen"], chunk_index=payload["chunk_no"])
