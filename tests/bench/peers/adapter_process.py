"""The bench's side of the protocol (`adapters/peer.py` is the other): a child process and requests that may overlap."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 180.0
INGEST_TIMEOUT_S = 900.0
CALL_TIMEOUT_S = 130.0
STOP_TIMEOUT_S = 40.0

SETTINGS = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
"""The same for everybody: as many threads as the named machine has cores, and nothing from a model hub."""
_NOT_INHERITED = ("DATS_", "RABBITMQ_", "QDRANT_", "RAG_", "LIGHTRAG_", "EMBEDDING_", "LLM_", "OTEL_", "PORT", "PYTHON")


class PeerFailed(Exception):
    """A peer did not do what it was asked; the message is what its row says."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` is the adapter's own time for the call, without the way through the pipe."""

    result: Any
    seconds: float


class AdapterProcess:
    """Requests to one adapter. Any thread may ask; answers find their request by its number.

    Args:
        log: where whatever the adapter and the peer print goes.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._ended = False
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,  # A peer's own children are in its process group, and end with it.
            )
        self._reader = threading.Thread(target=self._read, name="adapter answers", daemon=True)
        self._reader.start()

    def ask(self, op: str, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Answer:
        """Raises: PeerFailed: it says so, it ended, or it did not answer in time."""
        number = next(self._numbers)
        waiting: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._ended:
                raise PeerFailed(self._how_it_ended())
            self._waiting[number] = waiting
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
                self._process.stdin.flush()
            except OSError as error:
                raise PeerFailed(self._how_it_ended()) from error
        try:
            answer = waiting.result(timeout_s)
        except TimeoutError as error:
            raise PeerFailed(f"{op}: no answer within {timeout_s:.0f} s") from error
        if "error" in answer:
            raise PeerFailed(f"{op}: {answer['error']}")
        return Answer(answer["result"], answer["seconds"])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None:
                waiting.set_result(answer)
        with self._lock:
            self._ended = True
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            waiting.set_exception(PeerFailed(self._how_it_ended()))

    def _how_it_ended(self) -> str:
        said = self._log.read_text(errors="replace").strip().splitlines()
        return f"its process ended: {said[-1][:300] if said else 'it said nothing'}"

    def stop(self) -> None:
        """End of stdin, which asks it to stop; then its whole process group is made to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock, suppress(OSError):  # It may have ended with a request on its way.
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        self._process.stdout.close()


@contextmanager
def open_adapter(command: Sequence[str], *, path: Sequence[Path] = (), log: Path) -> Iterator[AdapterProcess]:
    """Start it with the settings that everybody gets; it has ended when this does.

    Args:
        path: of modules, besides what the interpreter has.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    environment = kept | SETTINGS | ({"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {})
    adapter = AdapterProcess(command, environment=environment, log=log)
    try:
        yield adapter
    finally:
        adapter.stop()
