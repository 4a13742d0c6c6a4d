"""The writer's pipeline through LightRAG: it chunks, embeds and stores; the ledger decides what is visible.

LightRAG keeps nothing between micro-batches: its storages are ours (`storages`), what they are handed is written in
common groups (`batch`), and recovery is the broker's redelivery, not LightRAG's resume.
"""

from dats_common.adapters.lightrag.indexer import LightRagIndexer, open_lightrag_indexer

__all__ = ["LightRagIndexer", "open_lightrag_indexer"]
