"""One embedded collection: its writes in order, in groups that share a flush; its reads beside them.

A write is durable once the shard is flushed. Writes that wait at the same time share one flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import qdrant_edge as edge
from qdrant_client import grpc

from dats_common.embedded import qdrant_translate as translate
from dats_common.embedded.qdrant_files import Description, write_description
from dats_common.embedded.qdrant_lanes import Lanes, Wanted
from dats_common.embedded.qdrant_strict import StrictMode

log = logging.getLogger(__name__)

MAX_QUEUED_WRITES = 256
MAX_GROUP = 64
"""Writes that share one flush at most; more only wait longer."""
GATHER_S = 0.005
"""How long the first write of a group waits for company. A flush takes about 18 ms and holds the interpreter's lock, so
that calls cannot even arrive meanwhile: without a pause, a hundred writers share a flush by twos (measured)."""

Result = TypeVar("Result")


class EngineFault(Exception):
    """The engine failed inside; the collection answers no more until the process is started again."""


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
        description = self.description
        await self._in_writer(lambda: write_description(self.path, description))

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
