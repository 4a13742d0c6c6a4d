"""Pathway's document store behind its REST server: files under a folder that it watches, dense vectors and BM25.

A document is a file `project/tag/id.txt`, so that a glob pattern on the path is the filter, and an `mv` or an `rm` is
what its users do. Source and queries commit every 50 ms.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import Document, Peer, Server, free_port, model_folder, serve

COMMIT_MS = 50
INDEXED_TIMEOUT_S = 240.0


class Pathway(Peer):
    def start(self, folder: Path) -> list[int]:
        self.documents, self.beside = folder / "documents", folder / "beside"
        self.documents.mkdir()
        self.beside.mkdir()
        port = free_port()
        command = [sys.executable, str(Path(__file__).resolve()), "server", str(self.documents), str(port)]
        self.server = Server(command, port=port, folder=folder)
        self.server.until_answers("/v1/statistics")
        return [self.server.pid]

    def ingest(self, documents: Sequence[Document]) -> None:
        wanted = set()
        for each in documents:
            place = self.documents / each["project"] / each["tag"] / f"{each['id']}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = self.beside / place.name
            beside.write_text(each["text"], encoding="utf-8")
            beside.rename(place)  # Whole at once: it may look at any moment.
            wanted.add(each["id"])
        give_up_at = time.monotonic() + INDEXED_TIMEOUT_S
        while wanted - self._indexed():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"not indexed within {INDEXED_TIMEOUT_S:.0f} s")
            time.sleep(0.1)

    def _indexed(self) -> set[str]:
        listed = self.server.call("POST", "/v1/inputs", {"return_status": True})
        return {Path(each["path"]).stem for each in listed if each["_indexing_status"] == "INDEXED"}

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        # Its BM25 parses a query language, and what is none (a colon, an open quote) ends the whole server.
        words = " ".join(re.findall(r"\w+", text)).lower()
        request: dict[str, Any] = {"query": words, "k": limit}
        if where:
            request["filepath_globpattern"] = f"**/{where['project']}/{where['tag']}/*"
        hits = self.server.call("POST", "/v1/retrieve", request)
        return [Path(hit["metadata"]["path"]).stem for hit in hits]

    def delete(self, document_id: str) -> None:
        (place,) = self.documents.glob(f"*/*/{document_id}.txt")
        place.unlink()

    def stop(self) -> None:
        self.server.stop()


def run_server(documents: str, port: int) -> None:
    """The quick start of its documentation, with both kinds of index."""
    import pathway as pw
    from pathway.stdlib.indexing import BruteForceKnnFactory, HybridIndexFactory, TantivyBM25Factory
    from pathway.xpacks.llm.document_store import DocumentStore
    from pathway.xpacks.llm.embedders import SentenceTransformerEmbedder
    from pathway.xpacks.llm.servers import DocumentStoreServer

    source = pw.io.fs.read(
        documents, format="binary", mode="streaming", with_metadata=True, autocommit_duration_ms=COMMIT_MS
    )
    embedder = SentenceTransformerEmbedder(model_folder(), batch_size=32)
    hybrid = HybridIndexFactory([BruteForceKnnFactory(embedder=embedder), TantivyBM25Factory()])
    server = DocumentStoreServer("127.0.0.1", port, DocumentStore(source, retriever_factory=hybrid))
    server.run(with_cache=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        run_server(sys.argv[2], int(sys.argv[3]))
    else:
        serve(Pathway())
