"""How the embedded engine's writer commits: flushed before it is confirmed, in groups, and never on after a panic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from qdrant_client import grpc as wire

from dats_common.embedded.qdrant_collection import Collection, EngineFault
from dats_common.embedded.qdrant_files import Description


class Panic(BaseException):
    """As the engine's panics are: no Exception."""


class Shard:
    """Records what is done to it; fails where it is told to."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def update(self, operation: str) -> None:
        if operation == "panic":
            raise Panic("poison")
        if operation == "refused":
            raise RuntimeError("no such thing")
        self.done.append(operation)

    def flush(self) -> None:
        self.done.append("flush")

    def close(self) -> None:
        self.done.append("close")


@contextlib.asynccontextmanager
async def collection_over(shard: Shard) -> AsyncIterator[Collection]:
    with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(1) as readers:
        description = Description(wire.CreateCollection(collection_name="c"))
        collection = Collection(Path("c"), description, shard, writer=writer, readers=readers)
        yield collection
        await collection.close()


async def test_a_write_that_waits_is_flushed_before_it_returns() -> None:
    shard = Shard()
    async with collection_over(shard) as collection:
        await collection.write(["one", "two"], durable=True)
        assert shard.done == ["one", "two", "flush"]


async def test_a_write_that_does_not_wait_is_flushed_when_asked_and_at_the_end() -> None:
    shard = Shard()
    async with collection_over(shard) as collection:
        await collection.write(["one"], durable=False)
        assert shard.done == ["one"]
        await collection.flush()
        await collection.flush()
        assert shard.done == ["one", "flush"]
        await collection.write(["two"], durable=False)
    assert shard.done == ["one", "flush", "two", "flush", "close"]


async def test_writes_that_wait_together_share_a_flush() -> None:
    shard = Shard()
    async with collection_over(shard) as collection:
        await asyncio.gather(*(collection.write([str(number)], durable=True) for number in range(40)))
        assert shard.done == [*(str(number) for number in range(40)), "flush"]


async def test_a_refused_write_fails_alone() -> None:
    shard = Shard()
    async with collection_over(shard) as collection:
        outcomes = await asyncio.gather(
            *(collection.write([name], durable=True) for name in ("one", "refused", "two")), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), EngineFault, type(None)]
        assert shard.done == ["one", "two", "flush"]


async def test_after_a_panic_the_shard_is_touched_no_more() -> None:
    shard = Shard()
    async with collection_over(shard) as collection:
        with pytest.raises(EngineFault, match="panicked"):
            await collection.write(["panic"], durable=True)
        with pytest.raises(EngineFault, match="Restart the engine"):
            await collection.write(["one"], durable=True)
        with pytest.raises(EngineFault):
            await collection.read(lambda shard: shard.done)
    assert shard.done == []


async def test_a_read_that_panics_is_an_error_and_not_the_end_of_the_process() -> None:
    async with collection_over(Shard()) as collection:
        with pytest.raises(EngineFault, match="panicked"):
            await collection.read(lambda shard: shard.update("panic"))
