"""Haystack's components in one process, which is how it comes; `memory` or `qdrant` as the argument.

In memory: dense vectors and BM25, joined by reciprocal ranks. Qdrant: qdrant-client's local mode in a folder, dense
vectors alone, since Haystack's sparse encoders come from a model hub.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import Document, Peer, batches, model_folder, serve

DIMENSIONS = 384


class Haystack(Peer):
    """What both stores have in common."""

    store: Any

    def start(self, folder: Path) -> list[int]:
        from haystack.components.writers import DocumentWriter
        from haystack.document_stores.types import DuplicatePolicy
        from haystack.utils import ComponentDevice
        from haystack_integrations.components.embedders.sentence_transformers import (
            SentenceTransformersDocumentEmbedder,
            SentenceTransformersTextEmbedder,
        )

        self.store = self._open(folder)
        cpu = ComponentDevice.from_str("cpu")
        self.document_embedder = SentenceTransformersDocumentEmbedder(
            model=model_folder(), device=cpu, progress_bar=False
        )
        self.text_embedder = SentenceTransformersTextEmbedder(model=model_folder(), device=cpu, progress_bar=False)
        self.document_embedder.warm_up()
        self.text_embedder.warm_up()
        self.writer = DocumentWriter(self.store, policy=DuplicatePolicy.OVERWRITE)
        return [os.getpid()]

    def _open(self, folder: Path) -> Any:
        raise NotImplementedError

    def ingest(self, documents: Sequence[Document]) -> None:
        from haystack import Document as Page

        for batch in batches(documents):
            pages = [
                Page(id=each["id"], content=each["text"], meta={"project": each["project"], "tag": each["tag"]})
                for each in batch
            ]
            self.writer.run(documents=self.document_embedder.run(documents=pages)["documents"])

    def delete(self, document_id: str) -> None:
        self.store.delete_documents([document_id])

    def _filters(self, where: Mapping[str, str]) -> dict[str, Any] | None:
        if not where:
            return None
        conditions = [{"field": f"meta.{name}", "operator": "==", "value": value} for name, value in where.items()]
        return {"operator": "AND", "conditions": conditions}


class InMemory(Haystack):
    def _open(self, folder: Path) -> Any:
        from haystack.components.joiners import DocumentJoiner
        from haystack.components.retrievers.in_memory import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
        from haystack.document_stores.in_memory import InMemoryDocumentStore

        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        self.dense, self.words = InMemoryEmbeddingRetriever(store), InMemoryBM25Retriever(store)
        self.joiner = DocumentJoiner(join_mode="reciprocal_rank_fusion")
        return store

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        filters = self._filters(where)
        vector = self.text_embedder.run(text=text)["embedding"]
        near = self.dense.run(query_embedding=vector, filters=filters, top_k=limit)["documents"]
        worded = self.words.run(query=text, filters=filters, top_k=limit)["documents"]
        return [hit.id for hit in self.joiner.run(documents=[near, worded], top_k=limit)["documents"]]


class OnQdrant(Haystack):
    def _open(self, folder: Path) -> Any:
        from haystack_integrations.components.retrievers.qdrant import QdrantEmbeddingRetriever
        from haystack_integrations.document_stores.qdrant import QdrantDocumentStore

        store = QdrantDocumentStore(
            path=str(folder / "qdrant"),
            index="bench",
            embedding_dim=DIMENSIONS,
            progress_bar=False,
            force_disable_check_same_thread=True,
        )
        self.dense = QdrantEmbeddingRetriever(store)
        return store

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        vector = self.text_embedder.run(text=text)["embedding"]
        hits = self.dense.run(query_embedding=vector, filters=self._filters(where), top_k=limit)["documents"]
        return [hit.id for hit in hits]


if __name__ == "__main__":
    serve({"memory": InMemory, "qdrant": OnQdrant}[sys.argv[1]]())
