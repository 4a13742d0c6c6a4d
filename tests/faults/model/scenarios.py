"""What is explored: small sets of messages that meet every verdict, each with every interleaving and a few faults."""

from __future__ import annotations

from dataclasses import replace

from dats_common.domain.model import ArtifactKey

from .state import Approved, Scenario, Tainted

A = ArtifactKey("t", "a")
B = ArtifactKey("t", "b")
OTHERS_A = ArtifactKey("u", "a")

OLD, TAINT, NEW = 10, 20, 30

# A query in the middle doubles what there is to explore. Where only the verdicts differ, I1 says the same without one.

VERSIONS = Scenario(
    "an old version, a taint, a new version",
    (Approved(A, "x", OLD), Approved(A, "y", NEW)),
    (Tainted(("a",), TAINT),),
)
COPIES = Scenario("a version twice, its taint", (Approved(A, "x", OLD),), (Tainted(("a",), TAINT),), copies=(0,))
TAINTS = Scenario(
    "a version between two taints",
    (Approved(A, "x", 15),),
    (Tainted(("a",), OLD), Tainted(("a",), TAINT)),
)
UNCHANGED = Scenario(
    "the same content again after a taint",
    (Approved(A, "x", OLD), Approved(A, "x", NEW)),
    (Tainted(("a",), TAINT),),
    queries=False,
)
SKEW = Scenario(
    "a version within the skew of a taint, and one beyond",
    (Approved(A, "x", 22), Approved(A, "y", 40)),
    (Tainted(("a",), TAINT),),
    skew=5,
    queries=False,
)
EQUAL = Scenario(
    "two contents of one time, a taint before them",
    (Approved(A, "x", OLD), Approved(A, "y", OLD)),
    (Tainted(("a",), 5),),
)
BARE = Scenario(
    "a version without time twice, a taint without time",
    (Approved(A, "x", None),),
    (Tainted(("a",), None),),
    copies=(0,),
)
MIXED = Scenario(
    "the same content with and without time, a taint in between",
    (Approved(A, "x", OLD), Approved(A, "x", None)),
    (Tainted(("a",), TAINT),),
    queries=False,
)
FUTURE = Scenario(
    "a version from a clock that is ahead, twice, a taint by the ledger's clock",
    (Approved(A, "x", 5000),),
    (Tainted(("a",), None),),
    copies=(0,),
    queries=False,
)
OWN_CLOCK = Scenario(
    "a command and a taint by the ledger's clock, no skew between them",
    (Approved(A, "x", 995, own_clock=True), Approved(A, "y", 999, own_clock=True)),
    (Tainted(("a",), None),),
    skew=5,
    queries=False,
)
PAIR = Scenario(
    "two artifacts, one taint of both",
    (Approved(A, "x", OLD), Approved(B, "y", NEW)),
    (Tainted(("a", "b"), TAINT),),
    queries=False,
)
WILDCARD = Scenario(
    "a taint without tenant, one tenant before it and one beyond",
    (Approved(A, "x", OLD), Approved(OTHERS_A, "y", NEW)),
    (Tainted(("a",), TAINT, tenant_id=None),),
    queries=False,
)
WILDCARD_RACE = replace(
    COPIES,
    name="a taint without tenant misses a row in the making",
    taints=(Tainted(("a",), TAINT, tenant_id=None),),
    wildcard_race=True,
    copies=(),
)
TAKEOVER = replace(
    COPIES,
    name="a version and its taint, two faults and a takeover from a writer that lives on",
    copies=(),
    faults=2,
    takeovers=1,
)
CLOSE_UP = replace(
    VERSIONS,
    name="the first, every step of relay and sweep apart",
    faults=0,
    queries=False,
    fine_relay=True,
    fine_sweep=True,
)
CLOSE_UP_CRASH = replace(
    COPIES,
    name="a version and its taint, every step of relay and sweep apart",
    copies=(),
    queries=False,
    fine_relay=True,
    fine_sweep=True,
)


SCENARIOS = (
    VERSIONS,
    TAKEOVER,
    COPIES,
    TAINTS,
    UNCHANGED,
    SKEW,
    EQUAL,
    BARE,
    MIXED,
    FUTURE,
    OWN_CLOCK,
    PAIR,
    WILDCARD,
    WILDCARD_RACE,
    CLOSE_UP,
    CLOSE_UP_CRASH,
)


def deeper(scenario: Scenario) -> Scenario:
    """The same messages with more going wrong: for a machine that has an hour."""
    return replace(scenario, faults=scenario.faults + 1, takeovers=1)
