"""Our own row: `dats-rag up` (embedded broker, ledger and engine, a writer, a replica), all of it through HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from peer import Document, Peer, Server, free_port, serve

CALLERS = 24
"""A replica has 64 requests in hand at most, and each of these waits until its document can be found: the rest is for
queries and deletions."""


class DatsRag(Peer):
    def start(self, folder: Path) -> list[int]:
        port = free_port()
        command = [sys.executable, "-m", "services.cli", "up", "--port", str(port), "--data", str(folder / "data")]
        self.server = Server(command, port=port, folder=folder)
        self.server.until_answers("/api/v1/health/ready")
        return [self.server.pid]

    def ingest(self, documents: Sequence[Document]) -> None:
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(self._embed, documents))

    def _embed(self, document: Document) -> None:
        metadata = {
            "artifact_id": document["id"],
            "project_id": document["project"],
            "provenance_id": "bench",
            "tags": [document["tag"]],
        }
        self.server.call("POST", "/api/v1/embed", {"content": document["text"], "metadata": metadata})

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        request = {"query": text, "top_k": limit, "max_tokens": 10_000}
        if where:
            request |= {"project_id": where["project"], "filters": {"tags": [where["tag"]]}}
        return [source["artifact_id"] for source in self.server.call("POST", "/api/v1/query", request)["sources"]]

    def delete(self, document_id: str) -> None:
        self.server.call("DELETE", f"/api/v1/embeddings/{quote(document_id, safe='')}")

    def stop(self) -> None:
        self.server.stop()


if __name__ == "__main__":
    serve(DatsRag())
