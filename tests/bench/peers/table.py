"""The peers' table: a row for each, also for one that failed, and a plain list of where we are behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.machine import Machine

BEHIND = "▼"
SEEN_LATE, OTHERS = "seen after acknowledgement", "others meanwhile"


@dataclass(frozen=True, slots=True)
class Column:
    """One measure.

    Attributes:
        key: of the summary.
        more_is_better: which end of the scale is the good one.
        digits: after the point; what is equal when written like this is no defeat.
    """

    key: str
    title: str
    unit: str = ""
    more_is_better: bool = False
    digits: int = 0


COLUMNS = (
    Column("documents_per_s", "ingest, documents/s", more_is_better=True, digits=1),
    Column("cpu_ms_per_document", "ingest, CPU a document", "ms"),
    Column("repeat_cpu", "same again: CPU", "%"),
    Column("copies", "same again: copies", digits=2),
    Column("query_p50_ms", "query p50", "ms", digits=1),
    Column("query_p95_ms", "query p95", "ms", digits=1),
    Column("recall", "recall@10", more_is_better=True, digits=3),
    Column("filtered_recall", "filtered recall@10", more_is_better=True, digits=3),
    Column("deleted_idle_ms", "deleted, idle", "ms", digits=1),
    Column("deleted_busy_ms", "deleted while ingesting", "ms", digits=1),
    Column("rss_mib", "memory", "MiB"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One peer's results.

    Attributes:
        values: by the columns' keys; None or missing: there was no sample.
        late: deletions after whose acknowledgement a query still found the document, of `deletions`.
        failed: why it has no values; empty: it has.
        troubles: what did not go well although it was measured.
        others_cores: of the machine, that something else used meanwhile.
    """

    title: str
    version: str
    over: str
    search: str
    ours: bool
    values: Mapping[str, float | None]
    filters: bool = True
    late: int = 0
    deletions: int = 0
    failed: str = ""
    troubles: tuple[str, ...] = ()
    others_cores: float | None = None


def written(column: Column, value: float) -> str:
    """With the column's digits and unit."""
    scaled = value * 100 if column.unit == "%" else value
    return f"{scaled:.{column.digits}f} {column.unit}".rstrip()


def beats(column: Column, one: float, other: float) -> bool:
    """Whether the first is better, as far as the table shows."""
    if written(column, one) == written(column, other):
        return False
    return one > other if column.more_is_better else one < other


def best(column: Column, rows: Sequence[Row]) -> Row | None:
    """Of those that have a value; the first of equals, None without any."""
    leader: Row | None = None
    for row in rows:
        value = row.values.get(column.key)
        if value is None:
            continue
        if leader is None or beats(column, value, leader.values[column.key]):  # type: ignore[arg-type]
            leader = row
    return leader


def losses(rows: Sequence[Row]) -> list[str]:
    """Every measure in which some peer is better than we are, who is best, and both values."""
    found = []
    for ours in (row for row in rows if row.ours):
        for column in COLUMNS:
            leader = best(column, rows)
            value = ours.values.get(column.key)
            if leader is None or leader.ours:
                continue
            theirs = leader.values[column.key]
            assert theirs is not None
            if value is None:
                found.append(f"{column.title}: {leader.title} {written(column, theirs)}, ours has no value")
            elif beats(column, theirs, value):
                found.append(f"{column.title}: {leader.title} {written(column, theirs)}, ours {written(column, value)}")
    return found


def cell(column: Column, row: Row) -> str:
    """One value of one row, without any mark."""
    value = row.values.get(column.key)
    if value is None:
        return "no sample"
    if column.key == "filtered_recall" and not row.filters:
        return f"{written(column, value)} (has no filter)"
    return written(column, value)


def _cores(row: Row) -> str:
    return "unknown" if row.others_cores is None else f"{row.others_cores:.1f} cores"


def _marked(column: Column, row: Row, rows: Sequence[Row]) -> str:
    """The best value is bold; ours is marked wherever it is not the best."""
    leader = best(column, rows)
    text, value = cell(column, row), row.values.get(column.key)
    if leader is None:
        return text
    top = leader.values[column.key]
    assert top is not None
    if value is not None and not beats(column, top, value):
        return f"**{text}**"
    return f"{text} {BEHIND}" if row.ours else text


def as_markdown(rows: Sequence[Row], machines: Sequence[Machine]) -> str:
    """The table, under what one must know to read it and above what it does not show."""
    first, last = min(each.started for each in machines), max(each.started for each in machines)
    machine = machines[0]
    loads = ", ".join(f"{each.load_average[0]:g}" for each in machines)
    heads = ["peer", "reached, search", *(column.title for column in COLUMNS), SEEN_LATE, OTHERS]
    lines = [
        f"`make bench-peers`, measured one after the other from {first} to {last}.",
        "",
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}, Python {machine.python}; "
        f"load averages before each row {loads}. **Bold**: best of the column; {BEHIND}: we are behind.",
        "",
        f"| {' | '.join(heads)} |",
        f"|---|---|{'---:|' * (len(heads) - 2)}",
    ]
    for row in rows:
        start = f"| {row.title} ({row.version}) | {row.over}, {row.search} |"
        if row.failed:
            lines.append(f"{start} no figures: {row.failed.replace('|', '/')}{' |' * (len(heads) - 2)}")
            continue
        cells = " | ".join(_marked(column, row, rows) for column in COLUMNS)
        lines.append(f"{start} {cells} | {row.late} of {row.deletions} | {_cores(row)} |")
    behind = losses(rows)
    lines += ["", "Where we are behind the best:" if behind else "We are behind in no column.", ""]
    lines += [f"- {line}" for line in behind]
    troubled = [f"- {row.title}: {each.replace('|', '/')}" for row in rows for each in row.troubles]
    if troubled:
        lines += ["", "What went wrong on the way:", "", *troubled]
    return "\n".join(lines).rstrip()
