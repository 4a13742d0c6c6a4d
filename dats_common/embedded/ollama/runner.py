"""The child process: llama.cpp's own server with one model, until the parent ends.

It listens on the loopback interface and answers only who has the key, which it reads from stdin.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
MOST_BATCH_TOKENS = 2048
"""Tokens that are computed together: an embedding's text must fit. Source: Ollama, DefaultEmbeddingNumBatch."""
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h.
_ERRORS = 1  # Of llama.cpp's log levels. It warns of every prompt that it has seen before.


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status. A failed start is told to the parent on stdout."""
    parser = argparse.ArgumentParser(prog="python -m dats_common.embedded.ollama.runner", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    wanted = parser.parse_args(arguments)
    # Ctrl-C reaches the whole terminal group; the parent stops us when it has finished its own work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _stdout_to_ourselves() as parent:
        key = sys.stdin.readline().strip()
        try:
            server = _load(wanted.file, window_tokens=wanted.window, threads=wanted.threads, key=key)
        except RuntimeError:
            _say(parent, {"error": f"llama.cpp cannot load {wanted.file}: name another GGUF file; its log says why"})
            return EXIT_CONFIGURATION
        _say(parent, {"port": urlsplit(server.listening_address).port})
        sys.stdin.read()  # The parent never writes again: its end, however violent, is an end of file.
    # Nothing is to be saved, and the library's own end would wait for what it still computes.
    os._exit(0)


def _load(path: Path, *, window_tokens: int, threads: int, key: str) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.hostnames = [LOOPBACK]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.offline = True
    params.verbosity = _ERRORS
    params.n_parallel = 1
    params.n_ctx = window_tokens
    params.n_batch = params.n_ubatch = min(window_tokens, MOST_BATCH_TOKENS)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.embedding = True  # Beside completions, which it does not slow down.
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.cache_ram_mib = 0  # By default it would keep up to 8 GiB of earlier prompts.
    return xllamacpp.Server(params)


@contextlib.contextmanager
def _stdout_to_ourselves() -> Iterator[TextIO]:
    """The pipe to the parent; whatever the library prints goes to the log instead."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)
        yield parent


def _say(parent: TextIO, message: dict[str, object]) -> None:
    """One line to the parent."""
    parent.write(json.dumps(message) + "\n")
    parent.flush()


if __name__ == "__main__":
    sys.exit(main())
