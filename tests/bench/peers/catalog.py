"""The peers: what each is called, which adapter drives it, in which environment, and how it is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One row of the table.

    Attributes:
        name: as `--only` takes it.
        title: as the table has it.
        adapter: the module under `adapters`.
        pins: the file under `pins` and the environment's name; empty: this project's own environment.
        shown: of that environment, the packages whose versions the table names.
        over: how it is reached.
        search: what its search stands on.
        filters: False: it has no metadata to filter by.
        arguments: of the adapter.
    """

    name: str
    title: str
    adapter: str
    pins: str
    shown: tuple[str, ...]
    over: str
    search: str
    filters: bool = True
    arguments: tuple[str, ...] = ()


OURS = "dats-rag"
PEERS = (
    PeerSpec(OURS, "DATS RAG", "with_dats_rag", "", (), "HTTP", "hybrid"),
    PeerSpec(
        "lightrag", "LightRAG server", "with_lightrag", "lightrag", ("lightrag-hku",), "HTTP", "dense", filters=False
    ),
    PeerSpec("pathway", "Pathway document store", "with_pathway", "pathway", ("pathway",), "HTTP", "hybrid"),
    PeerSpec("txtai", "txtai", "with_txtai", "txtai", ("txtai",), "HTTP", "hybrid"),
    PeerSpec(
        "haystack-memory",
        "Haystack, in memory",
        "with_haystack",
        "haystack",
        ("haystack-ai",),
        "in process",
        "hybrid",
        arguments=("memory",),
    ),
    PeerSpec(
        "haystack-qdrant",
        "Haystack, Qdrant local mode",
        "with_haystack",
        "haystack",
        ("haystack-ai", "qdrant-client"),
        "in process",
        "dense",
        arguments=("qdrant",),
    ),
    PeerSpec(
        "llama-index", "LlamaIndex", "with_llama_index", "llama-index", ("llama-index-core",), "in process", "dense"
    ),
)
