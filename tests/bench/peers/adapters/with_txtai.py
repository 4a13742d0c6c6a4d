"""txtai's API server: content in SQLite, dense vectors in Faiss and BM25 beside (`hybrid`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from peer import Document, Peer, Server, batches, free_port, model_folder, serve


class Txtai(Peer):
    def start(self, folder: Path) -> list[int]:
        port = free_port()
        config = {"writable": True, "embeddings": {"path": model_folder(), "content": True, "hybrid": True}}
        (folder / "txtai.yml").write_text(json.dumps(config))  # YAML holds all of JSON.
        command = [sys.executable, "-m", "uvicorn", "txtai.api:app", "--port", str(port), "--log-level", "warning"]
        self.server = Server(command, port=port, folder=folder, env={"CONFIG": str(folder / "txtai.yml")})
        self.server.until_answers("/count")
        return [self.server.pid]

    def ingest(self, documents: Sequence[Document]) -> None:
        for batch in batches(documents):
            self.server.call("POST", "/add", [dict(each) for each in batch])
            self.server.call("GET", "/upsert")

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        clause = "".join(f" and {name} = :{name}" for name in where)
        asked = {
            "query": f"select id from txtai where similar(:text){clause} limit {limit}",
            "parameters": json.dumps({"text": text, **where}),
            "limit": limit,
        }
        return [hit["id"] for hit in self.server.call("GET", f"/search?{urlencode(asked)}")]

    def delete(self, document_id: str) -> None:
        self.server.call("POST", "/delete", [document_id])

    def stop(self) -> None:
        self.server.stop()


if __name__ == "__main__":
    serve(Txtai())
