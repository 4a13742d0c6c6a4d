"""Every row of "each step is needed": the algorithm without it, and what must be found then.

Two kinds of result count. A *mutant* breaks: the checker must find a run that ends in the named kind of damage. A
*variant* changes an optimisation, or takes away one of two belts of which one is enough: nothing may be found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .invariants import Kind
from .scenarios import TAINTS, TAKEOVER, VERSIONS, WILDCARD_RACE
from .state import Rules, Scenario, World


@dataclass(frozen=True)
class Mutant:
    """A change of the rules and where it shows.

    Attributes:
        row: the row of the table that it belongs to.
        name: what is dropped or changed.
        kind: the damage that must be found.
    """

    row: str
    name: str
    kind: Kind
    rules: Rules
    scenario: Scenario

    @property
    def world(self) -> World:
        """What to explore."""
        return World(self.scenario, self.rules)


@dataclass(frozen=True)
class Variant:
    """A change that must not matter, and why."""

    name: str
    why: str
    rules: Rules
    scenarios: tuple[Scenario, ...]


# The smallest scenarios in which each one shows: a shortest trace is easier to read, and found sooner.
_CALM = replace(VERSIONS, faults=0)
_ONE_FAULT = VERSIONS
_UNTAINTED = replace(VERSIONS, taints=(), queries=False)
_CLOSE = replace(_CALM, fine_sweep=True)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("query guard", "no guard", "stale", Rules(guard="none"), _CALM),
    Mutant(
        "guard with a perfect lease",
        "no guard; writers never overlap; invalidated waits for the delete",
        "stale",
        Rules(guard="none", perfect_lease=True, publish_after_delete=True),
        _ONE_FAULT,
    ),
    Mutant("guard on an async cache", "guard on a copy that lags", "stale", Rules(guard="cache"), _CALM),
    Mutant(
        "guard without wildcards",
        "the guard does not look at taints without tenant",
        "stale",
        Rules(guard_sees_wildcards=False),
        replace(WILDCARD_RACE, faults=0),
    ),
    Mutant(
        "taint re-check at the flip",
        "V4 checks neither taint nor pending row (and no epoch)",
        "stale",
        Rules(flip_checks_taint=False, flip_checks_pending=False, fence=False),
        _CALM,
    ),
    Mutant(
        "taint re-check at the flip",
        "V4 does not check the taint, and T1 leaves pending rows",
        "stale",
        Rules(flip_checks_taint=False, taint_deletes_pending=False),
        _CALM,
    ),
    Mutant(
        "taint re-check at the flip",
        "neither V1 nor V4 checks the taint",
        "stale",
        Rules(flip_checks_taint=False, admit_checks_taint=False),
        _CALM,
    ),
    Mutant("tombstone for an unknown artifact", "none is written", "stale", Rules(taint_covers_unknown=False), _CALM),
    Mutant("tombstone as a flag", "the next validated clears it", "stale", Rules(taint_is_flag=True), _CALM),
    Mutant("publish before the tombstone", "before T1", "stale", Rules(publish_after_tombstone=False), _CALM),
    Mutant(
        "generation missing from the point id",
        "points name their artifact only",
        "stale",
        Rules(point_names_generation="nowhere"),
        _ONE_FAULT,
    ),
    Mutant(
        "generation missing from the point id",
        "only the payload names it",
        "lost",
        Rules(point_names_generation="payload"),
        _UNTAINTED,
    ),
    Mutant("live_gen not cleared", "T1 only raises the bounds", "stale", Rules(taint_clears_live=False), _CALM),
    Mutant("ack before the end", "after V1", "lost", Rules(ack_last=False), _CALM),
    Mutant("inbox row written first", "in V1", "lost", Rules(inbox_first=True), _ONE_FAULT),
    Mutant("outbox outside the flip", "in a transaction after V4", "lost", Rules(outbox_in_flip=False), _ONE_FAULT),
    Mutant(
        "delete not scoped to generations",
        "the sweep deletes an artifact's points",
        "lost",
        Rules(delete_names_generations=False),
        _CLOSE,
    ),
    Mutant(
        "list before the tombstone",
        "a taint deletes what the index had before it",
        "lost",
        Rules(taint_lists_first=True),
        _CALM,
    ),
    Mutant(
        "list before the tombstone",
        "the sweep reads what to keep before what the index has",
        "lost",
        Rules(keep_read_last=False),
        _CLOSE,
    ),
    Mutant("upsert without wait", "V4 does not wait for V3", "lost", Rules(upsert_waits=False), _CALM),
    Mutant("flip before upsert", "V4 before V3", "lost", Rules(flip_after_upsert=False), _CALM),
    Mutant(
        "flip without its pending row",
        "V4 checks neither pending row nor epoch",
        "lost",
        Rules(flip_checks_pending=False, fence=False),
        replace(_UNTAINTED, takeovers=1),
    ),
    Mutant(
        "refused flip acks",
        "a fenced or reclaimed flip is acknowledged",
        "lost",
        Rules(refused_flip_acks=True),
        replace(_UNTAINTED, faults=0, takeovers=1),
    ),
    Mutant(
        "refused flip acks",
        "a reclaimed flip is acknowledged, no epoch",
        "lost",
        Rules(refused_flip_acks=True, fence=False),
        replace(_UNTAINTED, faults=0, takeovers=1),
    ),
    Mutant("sweeper", "nobody sweeps", "hygiene", Rules(sweeper=False), _CALM),
)

_SMALL = (replace(TAKEOVER, faults=1), replace(_CALM, takeovers=1), TAINTS)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "V1 does not look at taints",
        "an optimisation: V4 looks again, V1 only saves the embedding",
        Rules(admit_checks_taint=False),
        _SMALL,
    ),
    Variant(
        "invalidated waits until the points are deleted",
        "an optimisation that was dropped: the guard does not need it, and it would wait for the index",
        Rules(publish_after_delete=True),
        _SMALL,
    ),
    Variant(
        "V4 does not look at taints",
        "one of two belts: T1 has deleted the pending row, and V4 does not flip without one",
        Rules(flip_checks_taint=False),
        _SMALL,
    ),
    Variant(
        "V4 does not look at taints, no epoch",
        "the pending row alone is enough: both a taint and a takeover delete it",
        Rules(flip_checks_taint=False, fence=False),
        _SMALL,
    ),
    Variant(
        "V4 does not look for its pending row",
        "one of two belts: only a takeover reclaims, and then the epoch is over",
        Rules(flip_checks_pending=False),
        _SMALL,
    ),
    Variant(
        "no epoch",
        "one of two belts: a takeover has deleted the pending row, and V4 does not flip without one",
        Rules(fence=False),
        _SMALL,
    ),
)
