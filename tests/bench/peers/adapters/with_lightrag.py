"""lightrag-hku's own server. Its embeddings and its language model are a small server in this process.

The language model finds no entity in any text, at once, so that the graph stays empty: this compares the search of
chunks (`mode: naive`), at the price of a pipeline whose dear part costs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer import Document, Peer, Refused, Server, batches, free_port, model_folder, serve

DIMENSIONS = 384
PROCESSED_TIMEOUT_S = 840.0
BUSY_TIMEOUT_S = 120.0
NO_ENTITY = "<|COMPLETE|>"
_CONFLICT = 409


class Lightrag(Peer):
    def start(self, folder: Path) -> list[int]:
        models = _Models()
        threading.Thread(target=models.serve_forever, name="models", daemon=True).start()
        models_url = f"http://127.0.0.1:{models.server_address[1]}/v1"
        port = free_port()
        env = {
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "WORKING_DIR": str(folder / "storage"),
            "INPUT_DIR": str(folder / "inputs"),
            "LLM_BINDING": "openai",
            "LLM_BINDING_HOST": models_url,
            "LLM_BINDING_API_KEY": "none",
            "LLM_MODEL": "no-entity",
            "EMBEDDING_BINDING": "openai",
            "EMBEDDING_BINDING_HOST": models_url,
            "EMBEDDING_BINDING_API_KEY": "none",
            "EMBEDDING_MODEL": "all-MiniLM-L6-v2",
            "EMBEDDING_DIM": str(DIMENSIONS),
            "TIKTOKEN_CACHE_DIR": _tokens_folder(),
            "LOG_LEVEL": "WARNING",
        }
        (folder / ".env").touch()  # It asks at the terminal where there is none.
        command = [sys.executable, "-m", "lightrag.api.lightrag_server"]
        self.server = Server(command, port=port, folder=folder, env=env)
        self.server.until_answers("/health")
        self.known: dict[str, str] = {}
        return [self.server.pid, os.getpid()]

    def ingest(self, documents: Sequence[Document]) -> None:
        """What is refused because its name is known already is left out, as its answer asks for."""
        tracks = []
        for batch in batches(documents):
            new = [each for each in batch if each["id"] not in self.known]
            for each in (each for each in batch if each["id"] in self.known):
                self._refused(each)
            if new:
                request = {"texts": [e["text"] for e in new], "file_sources": [f"{e['id']}.txt" for e in new]}
                tracks.append(self._when_free("POST", "/documents/texts", request)["track_id"])
        for track in tracks:
            self._processed(track)

    def _refused(self, document: Document) -> None:
        try:
            self.server.call(
                "POST", "/documents/text", {"text": document["text"], "file_source": f"{document['id']}.txt"}
            )
        except Refused as error:
            if error.status != _CONFLICT:
                raise

    def _when_free(self, method: str, path: str, request: Mapping[str, Any]) -> Any:
        """It refuses texts while it deletes."""
        give_up_at = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self.server.call(method, path, request)
            except Refused as error:
                if error.status != _CONFLICT or time.monotonic() > give_up_at:
                    raise
            time.sleep(0.05)

    def _processed(self, track: str) -> None:
        give_up_at = time.monotonic() + PROCESSED_TIMEOUT_S
        while time.monotonic() < give_up_at:
            documents = self.server.call("GET", f"/documents/track_status/{track}")["documents"]
            if failed := [each["error_msg"] for each in documents if each["status"] == "failed"]:
                raise RuntimeError(f"{len(failed)} failed, such as: {failed[0]}")
            if documents and all(each["status"] == "processed" for each in documents):
                self.known |= {Path(each["file_path"]).stem: each["id"] for each in documents}
                return
            time.sleep(0.25)
        raise TimeoutError(f"not processed within {PROCESSED_TIMEOUT_S:.0f} s")

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        """It knows no metadata: `where` is not heeded."""
        request = {"query": text, "mode": "naive", "chunk_top_k": limit, "enable_rerank": False}
        answer = self.server.call("POST", "/query/data", request)
        return [Path(chunk["file_path"]).stem for chunk in answer["data"].get("chunks", [])]

    def delete(self, document_id: str) -> None:
        """It deletes only when nothing else goes on: asked again until it accepts."""
        request = {"doc_ids": [self.known[document_id]]}
        give_up_at = time.monotonic() + BUSY_TIMEOUT_S
        while self.server.call("DELETE", "/documents/delete_document", request)["status"] == "busy":
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"still busy after {BUSY_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def stop(self) -> None:
        self.server.stop()


def _tokens_folder() -> str:
    """Where a package keeps the file that tiktoken would fetch from the internet. Source: package llama-index-core."""
    spec = find_spec("llama_index.core")
    if spec is None or spec.origin is None:
        raise RuntimeError("llama-index-core, which holds tiktoken's file, is not installed")
    return str(Path(spec.origin).parent / "_static" / "tiktoken_cache")


class _Models(ThreadingHTTPServer):
    """Embeddings of the same weights as everybody's, and a chat that finds nothing; in OpenAI's protocol."""

    daemon_threads = True

    def __init__(self) -> None:
        from sentence_transformers import SentenceTransformer

        super().__init__(("127.0.0.1", 0), _Answer)
        self.encoder = SentenceTransformer(model_folder(), device="cpu")
        self.encoding = threading.Lock()  # Several at once would only take the cores from each other.


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Models

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self._embeddings(asked) if self.path.endswith("/embeddings") else self._chat(asked)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _embeddings(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        import base64

        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        with self.server.encoding:
            vectors = self.server.encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        packed = asked.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": place,
                "embedding": base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist(),
            }
            for place, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": asked["model"], "usage": _USAGE}

    def _chat(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        message = {"role": "assistant", "content": NO_ENTITY}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [choice],
            "usage": _USAGE,
        }

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """A line for each request would be most of the log."""


_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

if __name__ == "__main__":
    serve(Lightrag())
