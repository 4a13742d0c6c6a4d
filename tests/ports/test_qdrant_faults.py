"""What the Qdrant adapter makes of a server that is slow, away, half-hearted or too old."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from index_engine import FINGERPRINT, point
from qdrant_client import grpc as wire

from dats_common.adapters.qdrant import QdrantIndex, open_qdrant
from dats_common.domain.model import ArtifactKey
from dats_common.embedded.qdrant_service import add_services
from dats_common.embedded.qdrant_store import open_store
from dats_common.errors import ConfigurationError, IndexUnavailable

KEY = ArtifactKey("default", "a")


class Points(wire.PointsServicer):
    """Answers every write with one status; counts what it is told is left."""

    def __init__(self, status: Any, *, left: list[int] | None = None) -> None:
        self.status = status
        self.left = left or [0]
        self.deletions = 0

    async def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(context)

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.deletions += 1
        return await self._answer(context)

    async def Count(self, request: Any, context: Any) -> Any:  # noqa: N802
        left = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return wire.CountResponse(result=wire.CountResult(count=left))

    async def _answer(self, context: Any) -> Any:
        match self.status:
            case grpc.StatusCode():
                await context.abort(self.status, "as the test wants it")
            case "never":
                await asyncio.Event().wait()
        return wire.PointsOperationResponse(result=wire.UpdateResult(status=self.status))


@contextlib.asynccontextmanager
async def served(points: Points) -> AsyncIterator[QdrantIndex]:
    server = grpc.aio.server()
    wire.add_PointsServicer_to_server(points, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_qdrant(host="127.0.0.1", grpc_port=port, collection="c", timeout_s=1) as index:
            yield index
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    "status",
    [
        wire.UpdateStatus.Acknowledged,
        wire.UpdateStatus.WaitTimeout,
        wire.UpdateStatus.ClockRejected,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.NOT_FOUND,
        "never",
    ],
    ids=str,
)
async def test_a_write_that_is_not_confirmed_is_not_done(status: Any) -> None:
    async with served(Points(status)) as index:
        with pytest.raises(IndexUnavailable):
            await index.store([point("a")])
        with pytest.raises(IndexUnavailable):
            await index.remove(KEY, [1])


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_refused_credentials_name_the_setting(status: grpc.StatusCode) -> None:
    async with served(Points(status)) as index:
        with pytest.raises(ConfigurationError, match="QDRANT_API_KEY"):
            await index.store([point("a")])


async def test_a_removal_is_repeated_until_it_reads_back_as_gone() -> None:
    points = Points(wire.UpdateStatus.Completed, left=[3, 1, 0])
    async with served(points) as index:
        await index.remove(KEY, [1])
    assert points.deletions == 3


async def test_a_removal_that_never_reads_back_as_gone_gives_up() -> None:
    async with served(Points(wire.UpdateStatus.Completed, left=[1])) as index:
        with pytest.raises(IndexUnavailable, match="still read back"):
            await index.remove(KEY, [1])


async def test_a_server_that_nobody_runs_is_unavailable() -> None:
    async with open_qdrant(host="127.0.0.1", grpc_port=1, collection="c", timeout_s=1) as index:
        with pytest.raises(IndexUnavailable):
            await index.ping()
        with pytest.raises(IndexUnavailable):
            await index.prepare(FINGERPRINT)


async def test_a_server_that_drops_the_fingerprint_is_refused(tmp_path: Any) -> None:
    """As servers before 1.16 do: they ignore the field, and a wrong model would go unnoticed later."""

    async def forgetful(continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if not details.method.endswith("Collections/Create"):
            return handler

        async def create(request: Any, context: Any) -> Any:
            request.ClearField("metadata")
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(create, handler.request_deserializer, handler.response_serializer)

    class Forgetful(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            return await forgetful(continuation, handler_call_details)

    async with open_store(tmp_path) as store:
        server = grpc.aio.server(interceptors=[Forgetful()])
        add_services(server, store)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with open_qdrant(host="127.0.0.1", grpc_port=port, collection="c", timeout_s=20) as index:
                with pytest.raises(ConfigurationError, match=r"1\.16 or newer"):
                    await index.prepare(FINGERPRINT)
        finally:
            await server.stop(None)
