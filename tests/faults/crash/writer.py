"""`python -m crash.writer DIRECTORY`: the production writer whose ports lead past the named points."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from crash.points import Control, Hook
from dats_common.domain.model import ArtifactKey, Chunk, Generation, Taint, Validated
from dats_common.domain.taint import FlipVerdict
from dats_common.errors import IndexUnavailable
from dats_common.ports import Bus, Index, Ledger, Subscription
from dats_common.records import Admission, Delivery, Point, TaintReceipt
from dats_common.settings import Settings, load_settings
from dats_common.telemetry.logs import configure_logs
from services.writer.__main__ import consume
from services.writer.ports import WriterPorts
from services.writer.wiring import open_writer_ports


class _Beside:
    """A port of which a few calls are looked at; the others pass."""

    def __init__(self, port: Any, control: Control) -> None:
        self._port = port
        self._control = control

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class CrashLedger(_Beside):
    """`ports.Ledger`."""

    async def activate(self, writer_id: str) -> int:
        epoch: int = await self._port.activate(writer_id)
        await self._control.at(Hook.TAKEN_OVER, "")
        return epoch

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        about = _named(event.key for event in events)
        await self._control.at(Hook.RECEIVED, about)
        admissions: list[Admission] = await self._port.admit(events, epoch=epoch)
        await self._control.at(Hook.ADMITTED, about)
        return admissions

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        await self._port.write_chunks(documents, embedding_model=embedding_model)
        await self._control.at(Hook.ROWS_WRITTEN, _named(generation.key for generation in documents))

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        about = _named(admission.event.key for admission in admissions)
        await self._control.at(Hook.ALL_STORED, about)
        verdicts: list[FlipVerdict] = await self._port.flip(admissions, epoch=epoch)
        await self._control.at(Hook.FLIPPED, about)
        return verdicts

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        about = " ".join(taint.artifact_ids)
        await self._control.at(Hook.TAINT_RECEIVED, about)
        receipt: TaintReceipt = await self._port.taint(taint, skew_s=skew_s)
        await self._control.at(Hook.TAINTED, about)
        return receipt


class CrashIndex(_Beside):
    """`ports.Index`."""

    async def store(self, points: Sequence[Point]) -> None:
        about = _named(point.ref.key for point in points)
        if self._control.takes_failure(about):
            raise IndexUnavailable("a hiccup")
        if self._control.armed_at(Hook.SOME_STORED, about):
            await self._port.store(points[: len(points) // 2])
            await self._control.at(Hook.SOME_STORED, about)
        await self._port.store(points)

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        await self._control.at(Hook.LISTED, key.artifact_id)
        await self._port.remove(key, generations)
        await self._control.at(Hook.DELETED, key.artifact_id)


class CrashBus(_Beside):
    """`ports.Bus`."""

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        about = json.dumps(body)
        await self._control.at(Hook.CLAIMED, about)
        await self._port.publish(routing_key, body, event_id=event_id)
        await self._control.at(Hook.PUBLISHED, about)

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        async with self._port.subscribe(queue, prefetch=prefetch) as subscription:
            yield cast(Subscription, CrashSubscription(subscription, self._control))


class CrashSubscription(_Beside):
    """`ports.Subscription`."""

    async def ack(self, delivery: Delivery) -> None:
        about = delivery.body.decode(errors="replace")
        await self._control.at(Hook.TO_ACK, about)
        await self._port.ack(delivery)
        await self._control.at(Hook.ACKED, about)

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        await self._port.retry(self._acknowledged_late(delivery), delay_s=delay_s)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        await self._control.at(Hook.REPORTED, delivery.body.decode(errors="replace"))
        await self._port.dead_letter(self._acknowledged_late(delivery), reason=reason)

    def _acknowledged_late(self, delivery: Delivery) -> Delivery:
        """To move a message is to publish a copy and to acknowledge the original: the point lies between the two."""
        return replace(delivery, handle=_Original(delivery.handle, self._control))


class _Original(_Beside):
    """The broker library's message."""

    async def ack(self) -> None:
        await self._control.at(Hook.MOVED, self._port.body.decode(errors="replace"))
        await self._port.ack()


def _named(keys: Any) -> str:
    return " ".join(key.artifact_id for key in keys)


@asynccontextmanager
async def open_crash_ports(settings: Settings, control: Control) -> AsyncIterator[WriterPorts]:
    """The production adapters, each behind its points."""
    async with open_writer_ports(settings) as ports:
        yield replace(
            ports,
            ledger=cast(Ledger, CrashLedger(ports.ledger, control)),
            index=cast(Index, CrashIndex(ports.index, control)),
            bus=cast(Bus, CrashBus(ports.bus, control)),
        )


def main() -> None:
    configure_logs(service="writer")
    settings = load_settings(None, os.environ)
    ports: AbstractAsyncContextManager[WriterPorts] = open_crash_ports(settings, Control(Path(sys.argv[1])))
    asyncio.run(consume(settings, ports))


if __name__ == "__main__":
    main()
