"""The run as a JSON file and as the table of docs/performance.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.figures import Figure, Kind
from tests.bench.machine import Machine

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
_ORDER = (Kind.RATIO, Kind.PROMISE, Kind.ABSOLUTE)


def ordered(figures: Sequence[Figure]) -> list[Figure]:
    """Ratios first, then promises, then what depends on the machine; each in the order it was measured."""
    return sorted(figures, key=lambda figure: _ORDER.index(figure.kind))


def verdict(figure: Figure) -> str:
    """In one word."""
    return {None: "", True: "met", False: "MISSED"}[figure.met]


def value(figure: Figure) -> str:
    """As many digits as mean something, and the unit."""
    if figure.kind is Kind.RATIO:
        return f"{figure.value:.3f}"
    digits = 2 if abs(figure.value) < 10 else 1 if abs(figure.value) < 100 else 0
    return f"{figure.value:.{digits}f} {figure.unit}".rstrip()


def as_json(machine: Machine, figures: Sequence[Figure], *, command: str) -> str:
    """The whole run for machines."""
    rows = [{**asdict(figure), "met": figure.met} for figure in ordered(figures)]
    return json.dumps({"command": command, "machine": machine.as_json(), "figures": rows}, indent=2) + "\n"


def as_markdown(machine: Machine, figures: Sequence[Figure], *, command: str) -> str:
    """The table, under what one must know to read it."""
    lines = [
        f"`{command}` on {machine.started}, commit {machine.commit}.",
        "",
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}, Python {machine.python}; "
        f"load average at the start {' '.join(map(str, machine.load_average))}.",
        "",
        "| benchmark | what | value | target | | how |",
        "|---|---|---:|---:|---|---|",
    ]
    lines += [
        f"| {each.benchmark} | {each.name} | {value(each)} | {each.target} | {verdict(each)} | {each.note} |"
        for each in ordered(figures)
    ]
    return "\n".join(lines)


def rewrite(page: Path, table: str, *, markers: tuple[str, str] = (BEGIN, END)) -> None:
    """Put the table between the page's markers. Raises: ValueError: the page has none."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(markers[0])
    _, end, tail = rest.partition(markers[1])
    if not begin or not end:
        raise ValueError(f"{page} has no markers for the table")
    page.write_text(f"{head}{begin}\n{table}\n{end}{tail}", encoding="utf-8")
