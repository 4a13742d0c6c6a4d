"""What is wrong with a service, in words, from its figures: what it means, what to do, and where the runbook says more.

The bounds are those of the alerts in deploy/prometheus/rules/alerts.yml, so that a page and a person hear the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

OLD_OUTBOX_S = 30.0
LEAST_FREE_SHARE = 0.1
MOST_CLOCK_OFFSET_S = 5.0
"""Times decide about versions; `events.skew_s` bears more, but a clock that is off by this much is not kept."""

WHEN_AWAY = {
    "ledger": "DatsRagGuardUnreachable",
    "index": "The index is lost or broken",
    "encoder": "The model or the GPU is missing",
    "broker": "The broker is lost",
    "writer": "DatsRagNoActiveWriter",
    "ollama": "Ollama is away",
}
"""What the runbook has on each thing that the service stands on, when it does not answer."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that somebody should see to.

    Attributes:
        what: of what it is a trouble, in a word: `dead letters`, `disk`.
        detail: what is wrong and what to do.
        runbook: the heading of docs/runbook.md that says more.
    """

    what: str
    detail: str
    runbook: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Figures of a service. None: could not be read, which is a trouble of its own and not one of these.

    Attributes:
        active_writers: ids of writers that call themselves active and reported lately.
        clock_offset_s: how far this machine's clock is ahead of the ledger's.
    """

    live_chunks: int | None = None
    points: int | None = None
    unsent_events: int | None = None
    oldest_unsent_s: float = 0.0
    quarantined: int | None = None
    dead_letters: int | None = None
    active_writers: Sequence[str] = field(default=())
    free_bytes: float | None = None
    disk_bytes: float | None = None
    clock_offset_s: float | None = None


def troubles(standing: Standing) -> list[Trouble]:
    """What the figures say is wrong; empty: nothing."""
    return [*_of_messages(standing), *_of_the_index(standing), *_of_machines(standing)]


def _of_messages(standing: Standing) -> Iterator[Trouble]:
    if standing.dead_letters:
        yield Trouble(
            "dead letters",
            f"{standing.dead_letters} messages were given up: `dats-rag dlq list` says why",
            "DatsRagDeadLetters",
        )
    if standing.quarantined:
        yield Trouble(
            "quarantine",
            f"{standing.quarantined} approved versions wait for a decision, invisible: `dats-rag quarantine list`",
            "DatsRagQuarantined",
        )
    if standing.unsent_events and standing.oldest_unsent_s > OLD_OUTBOX_S:
        yield Trouble(
            "outbox",
            f"{standing.unsent_events} events of ours have waited for the broker for up to "
            f"{standing.oldest_unsent_s:.0f} s: is it away, or does it take nothing?",
            "DatsRagOutboxStuck",
        )


def _of_the_index(standing: Standing) -> Iterator[Trouble]:
    if standing.points is None or standing.live_chunks is None:
        return
    off = standing.points - standing.live_chunks
    if off < 0:
        yield Trouble(
            "drift",
            f"the index lacks {-off} of {standing.live_chunks} live chunks, which no search finds: unless a rebuild is "
            "at work, run `dats-rag reindex`",
            "DatsRagIndexDrift",
        )
    # A writer at work is always a little ahead; as much again as is live is an index of something else.
    elif off > max(1000, standing.live_chunks):
        yield Trouble(
            "drift",
            f"the index holds {standing.points} points for {standing.live_chunks} live chunks: `dats-rag sweep` "
            "removes what nobody sees. Is it the index of another ledger?",
            "DatsRagIndexDrift",
        )


def _of_machines(standing: Standing) -> Iterator[Trouble]:
    if len(standing.active_writers) > 1:
        yield Trouble(
            "writers",
            f"{' and '.join(standing.active_writers)} call themselves active; only the newest epoch commits. If it "
            "lasts for more than a minute, stop one",
            "The writer is stuck, or you want to fail over",
        )
    free, size = standing.free_bytes, standing.disk_bytes
    if free is not None and size and free < LEAST_FREE_SHARE * size:
        yield Trouble(
            "disk",
            f"{free / 1e6:.0f} MB of {size / 1e6:.0f} MB are left where the data directory is: free some",
            "DatsRagDiskLow",
        )
    offset_s = standing.clock_offset_s
    if offset_s is not None and abs(offset_s) > MOST_CLOCK_OFFSET_S:
        ahead = "ahead of" if offset_s > 0 else "behind"
        yield Trouble(
            "clock",
            f"this machine's clock is {abs(offset_s):.0f} s {ahead} the ledger's: have both follow a time server",
            "Clocks differ",
        )
