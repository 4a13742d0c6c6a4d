"""The embedded engine's collections on disk: one shard each, one writer for all, commits in groups.

    DIR/engine.lock                       held by the one owner; tells its pid and port
    DIR/collections/NAME/collection.json  how it was created, its metadata and payload indexes
    DIR/collections/NAME/shard/           the engine's own files

A write is durable once the shard is flushed. Writes that wait at the same time share one flush.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import qdrant_edge as edge
from google.protobuf import json_format  # type: ignore[import-untyped]
from qdrant_client import grpc

from dats_common.embedded import qdrant_translate as translate
from dats_common.embedded.qdrant_lanes import Lanes, Wanted
from dats_common.embedded.qdrant_strict import StrictMode
from dats_common.errors import ConfigurationError

log = logging.getLogger(__name__)

READ_THREADS = max(4, os.cpu_count() or 4)
MAX_QUEUED_WRITES = 256
MAX_GROUP = 64
"""Writes that share one flush at most; more only wait longer."""
GATHER_S = 0.005
"""How long the first write of a group waits for company. A flush takes about 18 ms and holds the interpreter's lock, so
that calls cannot even arrive meanwhile: without a pause, a hundred writers share a flush by twos (measured)."""
FLUSH_EVERY_S = 5.0
"""Writes that did not ask to wait are on disk after this long at the latest."""
MAX_NAME_BYTES = 200  # A directory is named after it, and file systems take 255 bytes.

Result = TypeVar("Result")


class EngineFault(Exception):
    """The engine failed inside; the collection answers no more until the process is started again."""


# ------------------------------------------------------------------------------------------------------ description


@dataclass(frozen=True, slots=True)
class Description:
    """How a collection was made: enough to open it again and to describe it on the wire."""

    create: grpc.CreateCollection
    indexes: Mapping[str, grpc.CreateFieldIndexCollection] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of `collection.json`."""
        body = {
            "format": 1,
            "create": json_format.MessageToDict(self.create),
            "indexes": {name: json_format.MessageToDict(one) for name, one in self.indexes.items()},
        }
        return json.dumps(body, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Raises: ValueError: not such a text."""
        body = json.loads(text)
        if body.get("format") != 1:
            raise ValueError(f"unknown format {body.get('format')!r}")
        return cls(
            create=json_format.ParseDict(body["create"], grpc.CreateCollection()),
            indexes={
                name: json_format.ParseDict(one, grpc.CreateFieldIndexCollection())
                for name, one in body["indexes"].items()
            },
        )


def _write_atomically(path: Path, text: str) -> None:
    """Old or new, never half of it, and on disk when this returns."""
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------- collection


@dataclass(slots=True)
class _Write:
    """Operations in order, and who waits for them."""

    operations: Sequence[Any]
    durable: bool
    done: asyncio.Future[None]


class Collection:
    """One shard with its description. Only the writer's thread changes it; several threads read it."""

    def __init__(
        self,
        path: Path,
        description: Description,
        shard: Any,
        *,
        writer: ThreadPoolExecutor,
        readers: ThreadPoolExecutor,
    ) -> None:
        self.path = path
        self.description = description
        self.dense = translate.dimensions(description.create)
        self.sparse = translate.sparse_names(description.create)
        self.strict = StrictMode(description.create.strict_mode_config)
        self._shard = shard
        self._writer = writer
        self._readers = readers
        self._queue: asyncio.Queue[_Write] = asyncio.Queue(MAX_QUEUED_WRITES)
        self._dirty = False
        self._closing = False
        self._fault: EngineFault | None = None
        self._lanes = Lanes(self._query_batch, readers)
        self._task = asyncio.create_task(self._write_for_ever(), name=f"engine-writer:{path.name}")

    async def write(self, operations: Sequence[Any], *, durable: bool) -> None:
        """Apply the operations in order; with `durable`, return only once they are on disk.

        Raises: EngineFault.
        """
        if self._closing:
            raise EngineFault(f"the collection {self.path.name} is closing")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Write(operations, durable, done))
        await done

    async def read(self, call: Callable[[Any], Result]) -> Result:
        """Run `call(shard)` on a reader's thread.

        Raises: EngineFault; ValueError: the engine refused the request.
        """
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, call)

    async def search(self, queries: Sequence[Wanted]) -> list[Any]:
        """Hits for each query, in their order. Raises: EngineFault; ValueError: the engine refused a query."""
        return await self._lanes.search(queries)

    def _query_batch(self, requests: Sequence[Any]) -> list[Any]:
        batch = edge.QueryBatchRequest(list(requests))
        hits: list[Any] = self._read(lambda shard: shard.query_batch(batch))
        return hits

    def _read(self, call: Callable[[Any], Result]) -> Result:
        if self._fault is not None:
            raise self._fault
        try:
            return call(self._shard)
        except Exception as error:
            raise ValueError(str(error)) from error
        except BaseException as panic:  # A panic is no Exception; it must not end the process by surprise.
            raise self._broken(panic) from panic

    async def add_index(self, request: grpc.CreateFieldIndexCollection) -> None:
        """Index a payload field, now and after every restart. Raises: Unsupported; EngineFault."""
        operation = edge.UpdateOperation.create_field_index(request.field_name, translate.field_schema(request))
        await self.write([operation], durable=True)
        indexes = {**self.description.indexes, request.field_name: request}
        self.description = replace(self.description, indexes=indexes)
        text = self.description.to_json()
        await self._in_writer(lambda: _write_atomically(self.path / "collection.json", text))

    async def flush(self) -> None:
        """Put on disk what no caller waited for."""
        failure = await self._in_writer(lambda: self._guarded(self._flush))
        if failure is not None:
            log.error("engine_flush_failed", extra={"collection": self.path.name})

    async def close(self) -> None:
        """Finish the queued writes, flush, and let go of the files."""
        self._closing = True
        await self._queue.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._lanes.close()
        await self.flush()
        await self._in_writer(lambda: self._guarded(self._shard.close))

    async def _in_writer(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)

    async def _write_for_ever(self) -> None:
        while True:
            group = [await self._queue.get()]
            await asyncio.sleep(GATHER_S)
            while len(group) < MAX_GROUP and not self._queue.empty():
                group.append(self._queue.get_nowait())
            failures = await self._in_writer(lambda group=group: self._apply(group))  # type: ignore[misc]
            for one, failure in zip(group, failures, strict=True):
                self._queue.task_done()
                if one.done.done():  # Its caller has gone.
                    continue
                if failure is None:
                    one.done.set_result(None)
                else:
                    one.done.set_exception(failure)

    def _apply(self, group: Sequence[_Write]) -> list[EngineFault | None]:
        """Apply a group and flush once. A failed flush fails all who wait for it."""
        failures = [self._guarded(lambda one=one: self._update(one.operations)) for one in group]  # type: ignore[misc]
        if any(one.durable for one in group):
            flushed = self._guarded(self._flush)
            failures = [
                before or (flushed if one.durable else None) for one, before in zip(group, failures, strict=True)
            ]
        return failures

    def _update(self, operations: Sequence[Any]) -> None:
        self._dirty = True
        for operation in operations:
            self._shard.update(operation)

    def _flush(self) -> None:
        if self._dirty:
            self._shard.flush()
            self._dirty = False

    def _guarded(self, call: Callable[[], None]) -> EngineFault | None:
        if self._fault is not None:
            return self._fault
        try:
            call()
        except Exception as error:
            return EngineFault(f"the engine refused a write to {self.path.name}: {error}")
        except BaseException as panic:
            return self._broken(panic)
        return None

    def _broken(self, panic: BaseException) -> EngineFault:
        self._fault = EngineFault(f"the engine panicked on {self.path.name}: {panic}. Restart the engine.")
        log.error("engine_panicked", extra={"collection": self.path.name})
        return self._fault


# ------------------------------------------------------------------------------------------------------------ store


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
            description, shard = await self._in_writer(lambda path=path: _open_shard(path))  # type: ignore[misc]
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
            shard = await self._in_writer(lambda: _create_shard(path, description, config))
            self._collections[name] = self._collection(path, description, shard)
            return True

    async def delete(self, name: str) -> bool:
        """Remove a collection and its files; False where there is none."""
        async with self._changing:
            collection = self._collections.pop(name, None)
            if collection is None:
                return False
            await collection.close()
            await self._in_writer(lambda: _remove(collection.path))
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


def _create_shard(path: Path, description: Description, config: Any) -> Any:
    """The description is written last: without it the directory counts as never created."""
    _remove(path)
    path.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(path / "shard"), config)
    shard.flush()
    _write_atomically(path / "collection.json", description.to_json())
    _sync_directory(path.parent)
    return shard


def _open_shard(path: Path) -> tuple[Description | None, Any]:
    """The shard with its description, or (None, None) for what is left of a creation or deletion cut short."""
    try:
        text = (path / "collection.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        _remove(path)
        return None, None
    try:
        description = Description.from_json(text)
        shard = edge.EdgeShard.load(str(path / "shard"))
        present = shard.info().payload_schema
        for name, request in description.indexes.items():
            if name not in present:
                shard.update(edge.UpdateOperation.create_field_index(name, translate.field_schema(request)))
    except BaseException as error:  # A panic of the engine is no Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ConfigurationError(
            f"the index in {path} cannot be opened ({error}). It holds nothing that the ledger does not: "
            "move the directory away and run `dats-rag reindex`."
        ) from error
    return description, shard


def _remove(path: Path) -> None:
    """The description goes first, so that a removal cut short is finished at the next start."""
    if path.exists():
        (path / "collection.json").unlink(missing_ok=True)
        _sync_directory(path)
        shutil.rmtree(path)
