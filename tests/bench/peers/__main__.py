"""`python -m tests.bench.peers [--quick] [--fresh] [--only NAME]...`, from the root of the checkout."""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench.machine import Machine, this_machine
from tests.bench.peers.adapter_process import PeerFailed, open_adapter
from tests.bench.peers.catalog import OURS, PEERS, PeerSpec
from tests.bench.peers.environments import ADAPTERS, ROOT, installed, pins_of, version_of
from tests.bench.peers.measure import Measured, measure, summary
from tests.bench.peers.picture import peers_svg
from tests.bench.peers.table import COLUMNS, Row, as_markdown, cell, losses
from tests.bench.peers.workload import Workload, fingerprint, make
from tests.bench.report import rewrite

PAGE, PICTURE = Path("docs/performance.md"), Path("docs/performance-peers.svg")
CACHE = Path(".bench/peers")
RESUMED_WITHIN = timedelta(hours=12)
MARKERS = ("<!-- peers: begin -->", "<!-- peers: end -->")


def main() -> int:
    """Exit status 1 where a peer has no figures; the others' are written all the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    names = [spec.name for spec in PEERS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="a fifth of the workload; does not touch the page")
    parser.add_argument("--fresh", action="store_true", help="measure also what an earlier run has measured")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)  # Else the peers' processes would outlive this one.
    workload = make(quick=wanted.quick)
    results = CACHE / ("results-quick" if wanted.quick else "results")
    results.mkdir(parents=True, exist_ok=True)
    for spec in PEERS:
        if spec.name in (wanted.only or names):
            _obtain(spec, workload, results, fresh=wanted.fresh or bool(wanted.only))
    known = [(spec, _read(results, spec)) for spec in PEERS]
    rows = [_row(spec, each) for spec, each in known if each is not None]
    _show(rows)
    if not wanted.quick and len(rows) == len(PEERS):  # A part of the run must not replace the whole table.
        _write(rows, [each for _, each in known if each is not None])
    return int(any(row.failed for row in rows))


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _obtain(spec: PeerSpec, workload: Workload, results: Path, *, fresh: bool) -> None:
    """Measure it, unless it has been measured like this."""
    key = _key(spec, workload)
    before = _read(results, spec)
    if not fresh and before is not None and before["key"] == key and "measured" in before and _of_this_run(before):
        print(f"{spec.name}: measured {before['machine']['started']}", file=sys.stderr)
        return
    started = time.perf_counter()
    result: dict[str, Any] = {"key": key, "machine": this_machine().as_json()}
    log = CACHE / f"{spec.name}.log"
    try:
        python = installed(spec, CACHE)
        result["machine"] = this_machine().as_json()  # As it is once the installation is over.
        command = [str(python), str(ADAPTERS / f"{spec.adapter}.py"), *spec.arguments]
        with (
            tempfile.TemporaryDirectory(prefix="dats-peer-", ignore_cleanup_errors=True) as folder,
            open_adapter(command, path=[] if spec.pins else [ROOT], log=log) as adapter,
        ):
            measured = measure(adapter, workload, Path(folder))
        result["measured"] = asdict(measured)
    except PeerFailed as error:
        result["failed"] = str(error)
    (results / f"{spec.name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    outcome = result.get("failed", "measured")
    print(f"{spec.name}: {time.perf_counter() - started:.0f} s, {outcome}; log: {log}", file=sys.stderr)


def _of_this_run(result: dict[str, Any]) -> bool:
    """A run that was interrupted goes on with what it has; another day's figures are another run's."""
    started = datetime.strptime(result["machine"]["started"], "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC)
    return datetime.now(UTC) - started < RESUMED_WITHIN


def _key(spec: PeerSpec, workload: Workload) -> str:
    """Changes with whatever the result depends on."""
    parts = [fingerprint(workload), pins_of(spec)]
    parts += [(ADAPTERS / f"{module}.py").read_text(encoding="utf-8") for module in ("peer", spec.adapter)]
    if spec.name == OURS:
        parts.append(this_machine().commit)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _read(results: Path, spec: PeerSpec) -> dict[str, Any] | None:
    file = results / f"{spec.name}.json"
    result: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return result


def _row(spec: PeerSpec, result: dict[str, Any]) -> Row:
    version = f"commit {result['machine']['commit']}" if spec.name == OURS else version_of(spec)
    measured = Measured(**result["measured"]) if "measured" in result else None
    return Row(
        title=spec.title,
        version=version,
        over=spec.over,
        search=spec.search,
        filters=spec.filters,
        ours=spec.name == OURS,
        values=summary(measured) if measured else {},
        late=measured.late_idle + measured.late_busy if measured else 0,
        deletions=len(measured.deleted_idle_s) + len(measured.deleted_busy_s) if measured else 0,
        failed=result.get("failed", ""),
        troubles=tuple(measured.troubles) if measured else (),
        others_cores=measured.others_cores if measured else None,
    )


def _show(rows: Sequence[Row]) -> None:
    for row in rows:
        said = row.failed or ", ".join(f"{column.title} {cell(column, row)}" for column in COLUMNS)
        print(f"{row.title}: {said}")
    for line in losses(rows):
        print(f"behind: {line}")


def _write(rows: list[Row], results: list[dict[str, Any]]) -> None:
    machines = [
        Machine(**{**each["machine"], "load_average": tuple(each["machine"]["load_average"])}) for each in results
    ]
    rewrite(PAGE, as_markdown(rows, machines), markers=MARKERS)
    PICTURE.write_text(peers_svg(rows), encoding="utf-8")
    print(f"{PAGE} and {PICTURE} rewritten")


if __name__ == "__main__":
    sys.exit(main())
