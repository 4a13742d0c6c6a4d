"""`dats-rag verify`: what a fleet promises, looked at from outside, and what lies behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any
from urllib.parse import urlsplit

from dats_common.clients.rag import RAGClient, RAGError
from dats_common.errors import Unavailable
from dats_common.settings import Settings
from services.backends import open_bus, open_index, open_ledger
from services.cli.console import Voice
from services.cli.maintenance import require_fleet
from services.verify.canary import CanaryRun, Pace, Replica, open_canaries
from services.verify.metrics import VerifyMetrics
from services.verify.stores import StoreFigures, examine_stores
from services.verify.verdict import ReplicaFigures, judge, percentile

_GRACE_S = 10.0  # a sweep follows every taint at once; what is left after this was forgotten

Examine = Callable[[], Awaitable[StoreFigures]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's options."""

    urls: tuple[str, ...]
    rounds: int
    looks_per_s: float
    watch_s: float | None
    metrics_port: int
    replicas_only: bool
    tenant_id: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `stores` is None where only the replicas were asked."""

    replicas: tuple[ReplicaFigures, ...]
    stores: StoreFigures | None

    @property
    def is_well(self) -> bool:
        """Nothing stale, nothing lost, no drift, and all of it seen."""
        return all(each.is_well for each in self.replicas) and (self.stores is None or self.stores.is_well)


async def verify_fleet(settings: Settings, asked: Asked, *, verdicts: list[bool], voice: Voice) -> bool:
    """Verify once, or again and again until cancelled; each verdict goes to `verdicts` as well.

    Raises: RAGError; Unavailable; ConfigurationError.
    """
    async with (
        _open_replicas(settings, asked) as replicas,
        _open_examination(settings, asked) as examine,
        open_canaries(
            replicas, pace=Pace(looks_per_s=asked.looks_per_s), tenant_id=asked.tenant_id, clock=time.monotonic
        ) as canaries,
    ):
        metrics = VerifyMetrics([replica.name for replica in replicas])
        with metrics.served(asked.metrics_port) if asked.watch_s is not None else nullcontext():
            while True:
                try:
                    verdict = await _verify(canaries, replicas, examine, rounds=asked.rounds, voice=voice)
                except (RAGError, Unavailable) as error:
                    if asked.watch_s is None:
                        raise
                    metrics.failed.inc()
                    voice.note(f"no verdict: {error}")
                else:
                    verdicts.append(verdict.is_well)
                    metrics.add(verdict.replicas, verdict.stores, well=verdict.is_well)
                    _tell(verdict, voice)
                if asked.watch_s is None:
                    return verdict.is_well
                await asyncio.sleep(asked.watch_s)


@asynccontextmanager
async def _open_replicas(settings: Settings, asked: Asked) -> AsyncIterator[list[Replica]]:
    """Raises: RAGUnavailable: one does not answer."""
    key = None if asked.token else settings.auth.api_key.get_secret_value() or None
    async with AsyncExitStack() as stack:
        replicas = []
        for url in asked.urls:
            client = await stack.enter_async_context(RAGClient(url, api_key=key, token=asked.token))
            await client.health()
            replicas.append(Replica(_without_credentials(url), client))
        yield replicas


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@asynccontextmanager
async def _open_examination(settings: Settings, asked: Asked) -> AsyncIterator[Examine | None]:
    if asked.replicas_only:
        yield None
        return
    require_fleet(settings)
    async with (
        open_ledger(settings) as ledger,
        open_index(settings) as index,
        open_bus(settings, name="verify", patient=False) as bus,
    ):
        yield lambda: examine_stores(ledger=ledger, index=index, bus=bus, grace_s=_GRACE_S)


async def _verify(
    canaries: CanaryRun, replicas: Sequence[Replica], examine: Examine | None, *, rounds: int, voice: Voice
) -> Verdict:
    figures: list[list[ReplicaFigures]] = [[] for _ in replicas]
    with voice.progress("canaries written, found and withdrawn", rounds) as bar:
        for number in range(rounds):
            done = await canaries.round()
            for replica, mine in zip(replicas, figures, strict=True):
                mine.append(judge(done, replica=replica.name))
            bar.set(number + 1)
    stores = await examine() if examine is not None else None
    return Verdict(tuple(reduce(add, mine) for mine in figures), stores)


# ------------------------------------------------------------------------------------------------------- telling


def _tell(verdict: Verdict, voice: Voice) -> None:
    voice.result(
        {
            "well": verdict.is_well,
            "replicas": [_described(each) for each in verdict.replicas],
            "stores": None if verdict.stores is None else asdict(verdict.stores),
        }
    )
    voice.table(
        "Replicas",
        ("replica", "stale hits", "never found", "looks after a taint", "unanswered", "invisible", "searchable"),
        [
            (
                each.replica,
                str(each.stale_hits),
                str(each.unseen),
                str(each.looks_after) + (" (too few)" if each.unproven else ""),
                str(each.unanswered),
                _spread(each.invisible_s),
                _spread(each.searchable_s),
            )
            for each in verdict.replicas
        ],
    )
    if verdict.stores is not None:
        voice.table(
            "Stores",
            ("what", "value"),
            [(name.replace("_", " "), str(value)) for name, value in _plain(verdict.stores)],
        )
    voice.say("Well." if verdict.is_well else "NOT well: see above.")


def _plain(stores: StoreFigures) -> list[tuple[str, Any]]:
    shown = asdict(stores)
    examples = ", ".join(f"{key.tenant_id}/{key.artifact_id}" for key in stores.missing_examples)
    return [*({**shown, "missing_examples": examples} if examples else {**shown, "missing_examples": "none"}).items()]


def _described(each: ReplicaFigures) -> dict[str, Any]:
    return {
        "replica": each.replica,
        "well": each.is_well,
        "stale_hits": each.stale_hits,
        "never_found": each.unseen,
        "looks": each.looks,
        "looks_after_a_taint": each.looks_after,
        "rounds_with_too_few_looks": each.unproven,
        "unanswered_looks": each.unanswered,
        "taint_to_invisible_ms": _figures_ms(each.invisible_s),
        "event_to_searchable_ms": _figures_ms(each.searchable_s),
    }


def _figures_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    figures = {"p50": percentile(seconds, 0.5), "p99": percentile(seconds, 0.99), "max": percentile(seconds, 1.0)}
    return {name: None if value is None else round(1e3 * value, 1) for name, value in figures.items()}


def _spread(seconds: Sequence[float]) -> str:
    figures = _figures_ms(seconds)
    return "" if not seconds else f"p99 {figures['p99']:.0f} ms, max {figures['max']:.0f} ms"
