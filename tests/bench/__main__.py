"""`python -m tests.bench [--quick] [--json FILE] [names...]`, from the root of the checkout."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from dats_common.telemetry.logs import configure_logs
from services.cli.console import Voice
from tests.bench.answers import answers
from tests.bench.figures import Figure, Kind
from tests.bench.gpu import gpu
from tests.bench.ingest import ingest
from tests.bench.machine import this_machine
from tests.bench.query import query
from tests.bench.replica import replica
from tests.bench.report import as_json, as_markdown, ordered, rewrite, value, verdict
from tests.bench.scale import SIZES, scale
from tests.bench.steady import steady
from tests.bench.taint import taint
from tests.bench.tracing import tracing

PAGE = Path("docs/performance.md")
SCALING_PAGE = Path("docs/scaling.md")
BENCHMARKS: Mapping[str, Callable[..., Awaitable[list[Figure]]]] = {
    "ingest": ingest,
    "query": query,
    "answers": answers,
    "taint": taint,
    "steady": steady,
    "replica": replica,
    "tracing": tracing,
    "scale": scale,
    "gpu": gpu,
}
NOT_IN_A_WHOLE_RUN = {"scale", "tracing", "gpu"}
"""Only when they are named: figures of their own, in docs/scaling.md and docs/tracing.md, or of another machine."""


def main() -> int:
    """Run, print, write. Exit status 1 where a promise was broken; a missed target is a finding, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; none: all")
    parser.add_argument("--quick", action="store_true", help="smaller samples: 4 minutes on 2 idle cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to FILE as well")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, metavar="N,...", help="of scale: chunks, ascending")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="of scale: keep the filled indexes here and reuse them"
    )
    wanted = parser.parse_args()
    if unknown := set(wanted.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    configure_logs(service="bench")
    machine = this_machine()
    names = wanted.names or [name for name in BENCHMARKS if name not in NOT_IN_A_WHOLE_RUN]
    figures = asyncio.run(_run(names, quick=wanted.quick, sizes=wanted.sizes, data=wanted.data))
    voice = Voice()
    voice.table(
        f"{machine.cpu}, {machine.cores} cores, load {machine.load_average[0]} at the start, commit {machine.commit}",
        ("benchmark", "what", "value", "target", ""),
        [(each.benchmark, each.name, value(each), each.target, verdict(each)) for each in ordered(figures)],
    )
    command = " ".join(["python -m tests.bench", *(["--quick"] if wanted.quick else []), *wanted.names])
    if wanted.json:
        wanted.json.write_text(as_json(machine, figures, command=command), encoding="utf-8")
    if not wanted.names:  # A part of the run must not replace the whole table.
        rewrite(PAGE, as_markdown(machine, figures, command=command))
        voice.say(f"{PAGE} rewritten")
    if wanted.names == ["scale"] and not wanted.quick and wanted.sizes == SIZES:
        rewrite(SCALING_PAGE, as_markdown(machine, figures, command=command))
        voice.say(f"{SCALING_PAGE} rewritten")
    return int(any(each.kind is Kind.PROMISE and each.met is False for each in figures))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


async def _run(names: list[str], *, quick: bool, sizes: tuple[int, ...], data: Path | None) -> list[Figure]:
    figures: list[Figure] = []
    benchmarks = {**BENCHMARKS, "scale": partial(scale, sizes=sizes, data=data)}
    if task := asyncio.current_task():  # Ended by a signal without this, we would leave the fleet's processes behind.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in names:
        started = time.perf_counter()
        measured = await benchmarks[name](quick=quick)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
        for each in measured:  # At once: a long run that is cut short has shown something.
            print(f"  {each.name}: {value(each)} {verdict(each)} {each.note}", file=sys.stderr)
        figures += measured
    return figures


if __name__ == "__main__":
    sys.exit(main())
