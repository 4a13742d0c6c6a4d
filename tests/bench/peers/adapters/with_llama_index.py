"""LlamaIndex's own in-memory index: dense vectors, metadata filters, documents by their id. It has no server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import Document, Peer, batches, model_folder, serve


class LlamaIndex(Peer):
    def start(self, folder: Path) -> list[int]:
        from llama_index.core import Settings, VectorStoreIndex
        from llama_index.embeddings.huggingface import HuggingFaceEmbedding

        Settings.embed_model = HuggingFaceEmbedding(model_name=model_folder(), device="cpu", embed_batch_size=32)
        Settings.llm = None
        self.index = VectorStoreIndex.from_documents([])
        return [os.getpid()]

    def ingest(self, documents: Sequence[Document]) -> None:
        """New ones as `from_documents` does it, many at once; known ones as its documentation says, by `refresh`."""
        from llama_index.core import Document as Page
        from llama_index.core import Settings
        from llama_index.core.ingestion import run_transformations

        for batch in batches(documents):
            pages = [
                Page(
                    id_=each["id"],
                    text=each["text"],
                    metadata={"project": each["project"], "tag": each["tag"]},
                    excluded_embed_metadata_keys=["project", "tag"],
                )
                for each in batch
            ]
            store = self.index.docstore
            new = [page for page in pages if store.get_document_hash(page.id_) is None]
            for page in new:
                store.set_document_hash(page.id_, page.hash)
            self.index.insert_nodes(run_transformations(new, Settings.transformations))
            self.index.refresh_ref_docs([page for page in pages if page not in new])

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

        filters: Any = MetadataFilters(filters=[MetadataFilter(key=k, value=v) for k, v in where.items()])
        retriever = self.index.as_retriever(similarity_top_k=limit, filters=filters if where else None)
        return [str(hit.node.ref_doc_id) for hit in retriever.retrieve(text)]

    def delete(self, document_id: str) -> None:
        self.index.delete_ref_doc(document_id, delete_from_docstore=True)


if __name__ == "__main__":
    serve(LlamaIndex())
