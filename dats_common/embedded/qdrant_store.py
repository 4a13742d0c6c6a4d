"""The embedded engine's collections on disk: one shard each, one writer for all.

DIR/engine.lock        held by the one owner; tells its pid and port
DIR/collections/NAME/  a collection's description and its shard
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from qdrant_client import grpc

from dats_common.embedded import qdrant_translate as translate
from dats_common.embedded.qdrant_collection import Collection
from dats_common.embedded.qdrant_files import Description, create_shard, open_shard, remove_shard

READ_THREADS = max(4, os.cpu_count() or 4)
FLUSH_EVERY_S = 5.0
"""Writes that did not ask to wait are on disk after this long at the latest."""
MAX_NAME_BYTES = 200  # A directory is named after it, and file systems take 255 bytes.

Result = TypeVar("Result")


class Store:
    """All collections of one data directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="engine-write")
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="engine-read")
        self._collections: dict[str, Collection] = {}
        self._changing = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """The collections, sorted."""
        return sorted(self._collections)

    def get(self, name: str) -> Collection | None:
        """The collection, or None where there is none."""
        return self._collections.get(name)

    async def load(self) -> None:
        """Open every collection on disk. Raises: ConfigurationError: one of them cannot be opened."""
        await self._in_writer(lambda: self._root.mkdir(parents=True, exist_ok=True))
        for path in sorted(self._root.iterdir()):
            description, shard = await self._in_writer(lambda path=path: open_shard(path))  # type: ignore[misc]
            if description is not None:
                self._collections[unquote(path.name)] = self._collection(path, description, shard)

    async def create(self, request: grpc.CreateCollection) -> bool:
        """Make a collection; False where it exists already. Raises: ValueError: a bad name; Unsupported."""
        name = request.collection_name
        path = self._root / _directory_name(name)
        config = translate.shard_config(request)
        async with self._changing:
            if name in self._collections:
                return False
            description = Description(create=request)
            shard = await self._in_writer(lambda: create_shard(path, description, config))
            self._collections[name] = self._collection(path, description, shard)
            return True

    async def delete(self, name: str) -> bool:
        """Remove a collection and its files; False where there is none."""
        async with self._changing:
            collection = self._collections.pop(name, None)
            if collection is None:
                return False
            await collection.close()
            await self._in_writer(lambda: remove_shard(collection.path))
            return True

    async def close(self) -> None:
        """Flush and close every collection."""
        for collection in self._collections.values():
            await collection.close()
        self._collections.clear()
        self._readers.shutdown()
        self._writer.shutdown()

    async def flush_for_ever(self) -> None:
        """Every few seconds, put on disk what no caller waited for."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            for collection in list(self._collections.values()):
                await collection.flush()

    def _collection(self, path: Path, description: Description, shard: Any) -> Collection:
        return Collection(path, description, shard, writer=self._writer, readers=self._readers)

    async def _in_writer(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)


@contextlib.asynccontextmanager
async def open_store(data_dir: Path) -> AsyncIterator[Store]:
    """All collections of a directory that the caller owns; flushed and closed at the end.

    Raises: ConfigurationError: a collection cannot be opened.
    """
    store = Store(data_dir / "collections")
    flusher: asyncio.Task[None] | None = None
    try:
        await store.load()
        flusher = asyncio.create_task(store.flush_for_ever(), name="engine-flusher")
        yield store
    finally:
        if flusher is not None:
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
        await store.close()


def _directory_name(name: str) -> str:
    """Raises: ValueError: empty, too long, or with a leading dot."""
    quoted = quote(name, safe="")
    if not quoted or quoted.startswith(".") or len(quoted) > MAX_NAME_BYTES:
        raise ValueError(f"not a name for a collection: {name!r}")
    return quoted
