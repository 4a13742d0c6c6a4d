"""How `dats-rag top` says what it saw: tables for people, a document for machines; the same figures in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.scrape import Scrape, quantile
from services.cli.top_reading import Away, LedgerFigures, Picture, ReplicaFigures

_LATENCY = "rag_query_latency_seconds"
_UNKNOWN = "-"


def described(now: Picture, before: Picture | None) -> dict[str, Any]:
    """All figures; null where they are not known, with `away` saying why. Rates are a second, since `before`."""
    past_s = now.at_s - before.at_s if before else None
    return {
        "queues": _queues(now, before, past_s),
        "ledger": _ledger(now, before, past_s),
        "writers": _writers(now),
        "replicas": {
            url: _replica(figures, before.replicas.get(url) if before else None, past_s)
            for url, figures in now.replicas.items()
        },
    }


def _queues(now: Picture, before: Picture | None, past_s: float | None) -> dict[str, Any]:
    if isinstance(now.queues, Away):
        return {"away": now.queues.reason}
    old = before.queues if before and isinstance(before.queues, dict) else {}
    return {
        name: {"waiting": depth, "change_per_s": _rate(depth, old.get(name), past_s)}
        for name, depth in now.queues.items()
    }


def _ledger(now: Picture, before: Picture | None, past_s: float | None) -> dict[str, Any]:
    if isinstance(now.ledger, Away):
        return {"away": now.ledger.reason}
    counts = now.ledger.counts
    old = before.ledger.counts.live_chunks if before and isinstance(before.ledger, LedgerFigures) else None
    return {
        "live_artifacts": counts.live_artifacts,
        "live_chunks": counts.live_chunks,
        "live_chunks_per_s": _rate(counts.live_chunks, old, past_s),
        "tainted_artifacts": counts.tainted_artifacts,
        "quarantined": counts.quarantined,
        "outbox_unsent": counts.unsent_events,
        "outbox_oldest_s": round(counts.oldest_unsent_s, 1),
        "epoch": now.ledger.epoch,
    }


def _writers(now: Picture) -> list[dict[str, Any]]:
    if isinstance(now.ledger, Away):
        return []
    return [
        {
            "writer": beat.writer_id,
            "state": "silent" if beat.is_stale else beat.state,
            "pending": beat.pending,
            "processing": beat.processing,
            "reported_s_ago": round(beat.age_s, 1),
            "backend": beat.backend,
        }
        for beat in now.ledger.writers
    ]


def _replica(now: ReplicaFigures | Away, before: ReplicaFigures | Away | None, past_s: float | None) -> dict[str, Any]:
    if isinstance(now, Away):
        return {"away": now.reason}
    old = before.scrape if isinstance(before, ReplicaFigures) else None
    found, health = now.scrape, now.health
    spread = _since(found, old)
    ollama = health.get("ollama")
    return {
        "status": health["status"],
        "queries_per_s": _counted(found, old, f"{_LATENCY}_count", past_s),
        "server_errors_per_s": _counted(found, old, "rag_http_requests_total", past_s, status_from=500),
        "p50_s": quantile(spread, 0.5),
        "p95_s": quantile(spread, 0.95),
        "invalidations": found.total("rag_invalidation_count_total"),
        "drift_points": _drift(health),
        "ollama": None if ollama is None else {"healthy": ollama["healthy"], "model": ollama["model"]},
        "findings": health.get("findings", []),
    }


def _since(now: Scrape, before: Scrape | None) -> Mapping[float, float]:
    """Latencies since the last look; since the start where there were none, or the replica began anew."""
    buckets = now.buckets(_LATENCY)
    old = before.buckets(_LATENCY) if before else {}
    fresh = {bound: count - old.get(bound, 0.0) for bound, count in buckets.items()}
    return fresh if fresh and max(fresh.values()) > 0 and min(fresh.values()) >= 0 else buckets


def _counted(
    now: Scrape, before: Scrape | None, name: str, past_s: float | None, *, status_from: int = 0
) -> float | None:
    old = None if before is None else before.total(name, status_from=status_from)
    rate = _rate(now.total(name, status_from=status_from), old, past_s)
    return rate if rate is None or rate >= 0 else None  # it began anew


def _rate(now: float, before: float | None, past_s: float | None) -> float | None:
    return None if before is None or not past_s else round((now - before) / past_s, 2)


def _drift(health: Mapping[str, Any]) -> int | None:
    """Points less live chunks; not known where one of the two stores is away."""
    parts = health["components"]
    if any(parts[name]["status"] != "ok" for name in ("index", "ledger")):
        return None
    return int(health["index_metrics"]["total_vectors"] - health["index_metrics"]["total_chunks"])


# --------------------------------------------------------------------------------------------------------- people


def rendered(figures: Mapping[str, Any], *, title: str) -> RenderableType:
    """The same for people."""
    return Group(
        Text(title, style="bold"),
        _queue_table(figures["queues"]),
        _ledger_table(figures["ledger"]),
        _writer_table(figures["writers"], figures["ledger"]),
        _replica_table(figures["replicas"]),
        *_finding_lines(figures["replicas"]),
    )


def _table(title: str, *columns: str) -> Table:
    # No lines: on a terminal of 24 rows everything is to be seen.
    table = Table(title=title, title_justify="left", title_style="bold", expand=True, box=None)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if number else "left")
    return table


def _away(title: str, reason: str) -> Text:
    return Text(f"{title}: AWAY, {reason}", style="bold red")


def _queue_table(queues: Mapping[str, Any]) -> RenderableType:
    if "away" in queues:
        return _away("Queues", queues["away"])
    table = _table("Queues", "queue", "waiting", "change/s")
    for name, queue in queues.items():
        table.add_row(name, str(queue["waiting"]), _signed(queue["change_per_s"]))
    return table


def _ledger_table(ledger: Mapping[str, Any]) -> RenderableType:
    if "away" in ledger:
        return _away("Ledger", ledger["away"])
    table = _table("Ledger", "live artifacts", "chunks", "chunks/s", "tainted", "quarantine", "outbox", "oldest")
    table.add_row(
        str(ledger["live_artifacts"]),
        str(ledger["live_chunks"]),
        _signed(ledger["live_chunks_per_s"]),
        str(ledger["tainted_artifacts"]),
        str(ledger["quarantined"]),
        str(ledger["outbox_unsent"]),
        f"{ledger['outbox_oldest_s']} s",
    )
    return table


def _writer_table(writers: list[dict[str, Any]], ledger: Mapping[str, Any]) -> RenderableType:
    if "away" in ledger:
        return _away("Writers", "the ledger knows them")
    table = _table(f"Writers, epoch {ledger['epoch']}", "writer", "state", "pending", "in hand", "reported", "backend")
    for each in writers:
        ago = f"{each['reported_s_ago']} s ago"
        table.add_row(
            each["writer"], each["state"], str(each["pending"]), str(each["processing"]), ago, each["backend"]
        )
    return table if writers else Text("Writers: none has ever reported", style="bold red")


def _replica_table(replicas: Mapping[str, Any]) -> RenderableType:
    table = _table("Replicas", "replica", "status", "queries/s", "5xx/s", "p50", "p95", "drift", "taints", "ollama")
    for url, each in replicas.items():
        if "away" in each:
            table.add_row(url, Text(f"AWAY: {each['away']}", style="bold red"), *[_UNKNOWN] * 7)
            continue
        ollama = each["ollama"]
        model = "not used" if ollama is None else ollama["model"] if ollama["healthy"] else "AWAY"
        table.add_row(
            url,
            each["status"],
            _plain(each["queries_per_s"]),
            _plain(each["server_errors_per_s"]),
            _milliseconds(each["p50_s"]),
            _milliseconds(each["p95_s"]),
            _UNKNOWN if each["drift_points"] is None else f"{each['drift_points']:+d}",
            f"{each['invalidations']:.0f}",
            model,
        )
    return table


def _finding_lines(replicas: Mapping[str, Any]) -> list[Text]:
    """Each once, though every replica has it."""
    found = {
        (finding["what"], finding["detail"], finding["runbook"])
        for each in replicas.values()
        for finding in each.get("findings", [])
    }
    return [Text(f"! {what}: {detail} [{runbook}]", style="yellow") for what, detail, runbook in sorted(found)]


def _plain(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:+.1f}"


def _milliseconds(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value * 1e3:.0f} ms"
