"""`python -m tests.operate.load [--minutes 5] [--json FILE] [--picture FILE]`: do the dashboards tell the truth?

Finds how many queries a second the fleet answers at most, asks 60 % of that in all three modes while a writer ingests,
and holds what Prometheus's recording rules say against what the askers saw. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the tests' fleet and servers lie

from fleet import Producer, envelope, producer

from services.cli.console import Voice
from tests.bench.corpus import pages, questions
from tests.bench.figures import percentile
from tests.bench.machine import this_machine
from tests.operate.boards import dashboards
from tests.operate.picture import board_svg
from tests.operate.prometheus import Prometheus, open_prometheus
from tests.operate.shortened import EVALUATE_S, LEAST_WINDOW_S, SCRAPE_S
from tests.operate.stage import Stage, open_stage
from tests.operate.work import MODES, going_on

SHARE = 0.6
AGREE_WITHIN = 0.1
"""Source: the issue of operations, third thing to show."""
FILLED_PAGES = 150
PAGES_A_SECOND = 1.0
WATCH_EVERY_S = 30
CLIENTS = (1, 2, 4, 8, 16)
STEP_S = 10.0
ANSWERED = "200"
_TIMEOUT = aiohttp.ClientTimeout(total=30)


@dataclass
class Seen:
    """What the askers saw: seconds of each answer from its sending, by mode, and what came instead: a status, or an
    error's name.

    Attributes:
        since_due: the same, from when the question was due: the askers' own lag included.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    since_due: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def all(self) -> list[float]:
        return [each for some in self.seconds.values() for each in some]

    @property
    def errors(self) -> int:
        return self.failed.total()


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, as the askers and as the recording rule have it.

    Attributes:
        judged: whether both must agree.
    """

    what: str
    unit: str
    asked: float
    recorded: float
    rule: str
    judged: bool = True

    @property
    def off_by(self) -> float:
        """Share by which the rule is above what was seen."""
        return self.recorded / self.asked - 1 if self.asked else float(self.recorded != 0)

    @property
    def agrees(self) -> bool:
        """Within `AGREE_WITHIN`."""
        return abs(self.off_by) <= AGREE_WITHIN


def main() -> int:
    """Exit status 1: a query failed, or a judged figure does not agree."""
    parser = argparse.ArgumentParser(prog="python -m tests.operate.load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the Fleet dashboard as SVG")
    wanted = parser.parse_args()
    machine, voice = this_machine(), Voice()
    with tempfile.TemporaryDirectory(prefix="dats-load-", ignore_cleanup_errors=True) as base:
        saturation, seen, compared, svg = asyncio.run(_run(Path(base), minutes=wanted.minutes, voice=voice))
    voice.table(
        f"{machine.cpu}, {machine.cores} cores; saturated at {saturation:.1f} queries/s, asked {SHARE:.0%} of that for "
        f"{wanted.minutes:g} minutes in all modes beside {PAGES_A_SECOND:g} pages/s: {len(seen.all)} answers, "
        f"{seen.errors} errors {dict(seen.failed) or ''}, p95 {1000 * percentile(seen.all, 95):.1f} ms, from when they "
        f"were due {1000 * percentile(seen.since_due, 95):.1f} ms",
        ("figure", "askers", "recording rule", "off by", "", "rule"),
        [
            (
                each.what,
                f"{each.asked:.4g} {each.unit}",
                f"{each.recorded:.4g} {each.unit}",
                f"{each.off_by:+.1%}",
                ("agrees" if each.agrees else "DIFFERS") if each.judged else "",
                each.rule,
            )
            for each in compared
        ],
    )
    if wanted.json:
        figures = [{**asdict(each), "off_by": each.off_by, "agrees": each.agrees} for each in compared]
        report = {
            "machine": machine.as_json(),
            "minutes": wanted.minutes,
            "saturation_qps": saturation,
            "answers": len(seen.all),
            "p95_since_due_s": percentile(seen.since_due, 95),
            "errors": seen.failed,
            "figures": figures,
        }
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    if wanted.picture:
        wanted.picture.write_text(svg)
    return 0 if seen.errors == 0 and all(each.agrees for each in compared if each.judged) else 1


async def _run(base: Path, *, minutes: float, voice: Voice) -> tuple[float, Seen, list[Compared], str]:
    # The rules' five minutes are as long as the load: at the end they have seen all of it and nothing else.
    async with (
        open_stage(base) as stage,
        open_prometheus(base / "prometheus", targets=stage.targets, times_faster=5 / minutes) as prometheus,
        producer(stage.fleet.amqp_url) as team,
    ):
        began = time.time()
        stage.watch([replica.url for replica in stage.fleet.replicas], port=stage.watch_ports[0], every_s=WATCH_EVERY_S)
        await _fill(team)
        voice.note("the index is filled; looking for saturation")
        async with going_on(lambda: _ingest(team)), _client() as client:
            saturation = await _saturation(client, stage, voice=voice)
            voice.note(f"{saturation:.1f} queries/s at most; now {SHARE:.0%} of that for {minutes:g} minutes")
            seen = await _ask_steadily(client, stage, rate=SHARE * saturation, seconds=60 * minutes)
            await asyncio.sleep(SCRAPE_S + 2 * EVALUATE_S)  # until the last scrape has been reckoned with
            compared = await _compare(prometheus, seen, seconds=60 * minutes)
        svg = await board_svg(
            dashboards()["fleet.json"], prometheus, start=began, end=time.time(), rate_interval_s=LEAST_WINDOW_S
        )
    return saturation, seen, compared, svg


# ------------------------------------------------------------------------------------------------------------ asking


@asynccontextmanager
async def _client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as client:
        yield client


async def _ask(client: aiohttp.ClientSession, url: str, *, question: str, mode: str) -> str:
    """Its status, or what went wrong."""
    body = {"query": question, "search_mode": mode, "project_id": "proj-1"}
    try:
        async with client.post(f"{url}/api/v1/query", json=body) as response:
            await response.read()
            return str(response.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__


async def _saturation(client: aiohttp.ClientSession, stage: Stage, *, voice: Voice) -> float:
    """Answers a second of as many askers without a pause as get the most; the mean of two rounds, because a shared
    machine is quick and slow in turn, and the quick turn alone is more than it has for minutes."""
    rounds = [[await _closed_loop(client, stage, count, seed=seed) for count in CLIENTS] for seed in range(2)]
    means = [sum(pair) / len(pair) for pair in zip(*rounds, strict=True)]
    for count, mean in zip(CLIENTS, means, strict=True):
        voice.note(f"{count} askers: {mean:.1f} queries/s")
    return max(means)


async def _closed_loop(client: aiohttp.ClientSession, stage: Stage, count: int, *, seed: int) -> float:
    until = time.perf_counter() + STEP_S

    async def asker(number: int) -> int:
        # Others in each step: a replica keeps the vectors of what it was asked.
        own = 1000 * seed + 100 * CLIENTS.index(count) + number
        mine, modes = iter(questions(100_000 // 16, seed=own)), itertools.cycle(MODES)
        replica = stage.fleet.replicas[number % len(stage.fleet.replicas)]
        done = 0
        while time.perf_counter() < until:
            done += await _ask(client, replica.url, question=next(mine), mode=next(modes)) == ANSWERED
        return done

    return sum(await asyncio.gather(*(asker(number) for number in range(count)))) / STEP_S


async def _ask_steadily(client: aiohttp.ClientSession, stage: Stage, *, rate: float, seconds: float) -> Seen:
    """Questions come by themselves, whether or not the last one was answered."""
    seen, chance = Seen(), random.Random(7)
    asked = questions(round(rate * seconds * 1.5), seed=11)
    replicas = itertools.cycle(stage.fleet.replicas)

    async def one(question: str, mode: str, url: str, due: float) -> None:
        sent = time.perf_counter()
        came = await _ask(client, url, question=question, mode=mode)
        if came == ANSWERED:
            seen.seconds[mode].append(time.perf_counter() - sent)
            seen.since_due.append(time.perf_counter() - due)
        else:
            seen.failed[came] += 1

    started = due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for question in asked:
            due += chance.expovariate(rate)
            if due > started + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(question, chance.choice(MODES), next(replicas).url, due))
    return seen


# ---------------------------------------------------------------------------------------------------------- ingesting


async def _fill(team: Producer) -> None:
    ids = [await _publish(team, f"filled-{number}", page) for number, page in enumerate(pages(FILLED_PAGES, label="f"))]
    await team.completed(*ids)


async def _ingest(team: Producer) -> None:
    """New pages at an even pace, for ever."""
    for number, page in enumerate(itertools.cycle(pages(FILLED_PAGES, label="new"))):
        await _publish(team, f"new-{number}", page)
        await asyncio.sleep(1 / PAGES_A_SECOND)


async def _publish(team: Producer, artifact_id: str, content: str) -> str:
    data = {"artifact_id": artifact_id, "content": content, "metadata": {"project_id": "proj-1"}}
    await team.publish("task.validated", envelope(data, at=time.time()))
    return artifact_id


# ---------------------------------------------------------------------------------------------------------- comparing


async def _compare(prometheus: Prometheus, seen: Seen, *, seconds: float) -> list[Compared]:
    async def figure(
        what: str, unit: str, asked: float, rule: str, *, judged: bool = True, times: float = 1
    ) -> Compared:
        return Compared(what, unit, asked, times * await prometheus.value(rule), rule, judged)

    def ms(samples: Sequence[float], percent: float) -> float:
        return 1000 * percentile(samples, percent)

    # The watch asks the replicas too.
    looks = await prometheus.value(f"sum(rate(rag_verify_looks_total[{seconds:.0f}s]))")
    rate = (len(seen.all) + seen.errors) / seconds + looks
    failed = seen.errors / (len(seen.all) + seen.errors)
    return [
        await figure("queries, with canaries", "/s", rate, "rag:queries:rate5m"),
        await figure("failed", "", failed, "rag:query_errors:ratio_rate5m"),
        *[
            await figure(f"p{percent}", "ms", ms(seen.all, percent), f"rag:query_latency_seconds:p{percent}_5m",
                         judged=percent == 95, times=1000)
            for percent in (50, 95, 99)
        ],
        *[
            await figure(f"p95 {mode}", "ms", ms(seen.seconds[mode], 95),
                         f'mode:rag_query_latency_seconds:p95_5m{{mode="{mode}"}}', judged=False, times=1000)
            for mode in MODES
        ],
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
