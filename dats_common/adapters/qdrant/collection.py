"""A collection: how it is laid out over nodes and memory, its payload indexes, and which model wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dats_common.adapters.qdrant.points import DENSE, SPARSE
from dats_common.errors import ConfigurationError
from dats_common.fingerprint import agree
from dats_common.records import Fingerprint

if TYPE_CHECKING:
    from qdrant_client import models

_FINGERPRINT = "dats_fingerprint"
OVERSAMPLING = 2.0
"""How many more hits than wanted are taken by their int8 vectors before the exact ones decide."""
QUANTILE = 0.99
"""Numbers beyond it are clipped before they become int8. Source: Qdrant's advice, so that one outlier does not cost
all others their precision."""

# Strict mode's bounds: above what the adapter ever asks for, far below what could hurt a cluster.
MOST_HITS = 2048
MOST_POINTS_AN_UPSERT = 256
MOST_QUERIES_A_BATCH = 16
MOST_CONDITIONS = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """How a new collection is laid out over nodes and memory; one that exists keeps its own.

    Attributes:
        shard_number: parts that nodes share; cannot be changed later without writing everything again.
        replication_factor: copies of each shard, each on a node of its own.
        write_consistency_factor: copies that must have a write before it counts as done.
        int8: search by vectors of a quarter of the size, kept in memory, and decide by the exact ones.
        on_disk_vectors: leave the exact vectors on disk, where the page cache may keep them.
        strict: let the server refuse what would cost it dearly: unindexed filters, huge limits and batches.
    """

    shard_number: int = 1
    replication_factor: int = 1
    write_consistency_factor: int = 1
    int8: bool = False
    on_disk_vectors: bool = False
    on_disk_payload: bool = True
    strict: bool = False


def creation(fingerprint: Fingerprint, layout: Layout) -> dict[str, Any]:
    """What the client's `create_collection` takes beside the name."""
    from qdrant_client import models

    dense = models.VectorParams(
        size=fingerprint.dimension, distance=models.Distance.COSINE, on_disk=layout.on_disk_vectors
    )
    return {
        "vectors_config": {DENSE: dense},
        "sparse_vectors_config": {SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
        "shard_number": layout.shard_number,
        "replication_factor": layout.replication_factor,
        "write_consistency_factor": layout.write_consistency_factor,
        "on_disk_payload": layout.on_disk_payload,
        "quantization_config": _int8() if layout.int8 else None,
        "strict_mode_config": _strict_mode() if layout.strict else None,
        "metadata": {_FINGERPRINT: _fingerprint_as_metadata(fingerprint)},
    }


def _int8() -> models.ScalarQuantization:
    from qdrant_client import models

    scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=QUANTILE, always_ram=True)
    return models.ScalarQuantization(scalar=scalar)


def _strict_mode() -> models.StrictModeConfig:
    from qdrant_client import models

    return models.StrictModeConfig(
        enabled=True,
        unindexed_filtering_retrieve=False,
        unindexed_filtering_update=False,
        max_query_limit=MOST_HITS,
        upsert_max_batchsize=MOST_POINTS_AN_UPSERT,
        search_max_batchsize=MOST_QUERIES_A_BATCH,
        search_max_oversampling=OVERSAMPLING,
        filter_max_conditions=MOST_CONDITIONS,
    )


def payload_indexes() -> list[tuple[str, Any]]:
    """Every field that a filter names, with what the server is to keep of it."""
    from qdrant_client import models

    keyword = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD)
    tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
    return [
        ("tenant_id", tenant),
        ("artifact_id", keyword),
        # Never asked for a range, and an index for ranges would cost its files at every flush.
        ("gen", models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=True, range=False)),
        *((name, keyword) for name in ("project_id", "domain", "doc_type", "tags")),
        ("verified", models.PayloadSchemaType.BOOL),
        ("scope", keyword),
        ("user_id", keyword),
    ]


def _fingerprint_as_metadata(fingerprint: Fingerprint) -> dict[str, Any]:
    return {
        "model": fingerprint.model,
        "dimension": fingerprint.dimension,
        "max_tokens": fingerprint.max_tokens,
        "sparse_version": fingerprint.sparse_version,
        "probe": [list(vector) for vector in fingerprint.probe],
    }


def check_fingerprint(ours: Fingerprint, metadata: Mapping[str, Any], collection: str) -> None:
    """Raises: ConfigurationError: the collection is another model's, or tells none."""
    stored = metadata.get(_FINGERPRINT)
    if not isinstance(stored, dict):
        raise ConfigurationError(
            f"the Qdrant collection {collection!r} does not tell which model wrote it. Either it is not ours: set "
            "QDRANT_COLLECTION to another name; or the server drops collection metadata: use Qdrant 1.16 or newer, "
            "then `dats-rag reindex --recreate`."
        )
    written = Fingerprint(
        model=stored.get("model", ""),
        dimension=stored.get("dimension", 0),
        max_tokens=stored.get("max_tokens", 0),
        sparse_version=stored.get("sparse_version", ""),
        probe=tuple(map(tuple, stored.get("probe", ()))),
    )
    differences = agree(written, ours)
    if differences:
        raise ConfigurationError(
            f"the Qdrant collection {collection!r} was written by another model ({'; '.join(differences)}). "
            "Set the model back (EMBEDDING_MODEL), or run `dats-rag reindex --recreate`."
        )
