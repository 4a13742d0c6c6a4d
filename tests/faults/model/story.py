"""Runs and results in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .explore import Explored
from .mutants import Mutant, Variant
from .replay import same_run
from .state import Scenario, State, Step, World, first_state

_SENTENCES: Mapping[str, str] = {
    "take": "{writer} takes {message}",
    "activate": "{writer} raises the epoch, pending generations are gone",
    "V1": "{writer} V1: {v1}",
    "send": "{writer} V3: sends the points of generation {generation}",
    "apply": "the index applies generation {what}",
    "no answer": "{writer} gets no answer and gives its message back",
    "V4": "{writer} V4: {v4}",
    "finish": "{writer} is done",
    "next": "{writer} does what the flip left out",
    "hang": "{writer} hangs: {held} goes back to the queue, but it lives on",
    "crash": "{writer} crashes",
    "T1": "T1: {taint}",
    "T1 begins": "T1 reads which rows there are: {taint}",
    "announce": "invalidated is published: {taint}",
    "list first": "the taint's handler lists the index: {taint}",
    "relay": "the relay publishes {unsent}",
    "publish": "the relay publishes one event",
    "mark sent": "the relay marks what it published",
    "relay crashes": "the relay crashes",
    "sweep": "the sweep deletes dead points of {artifact}",
    "list": "the sweep reads the index's generations of {artifact}",
    "keep": "the sweep reads what is live or pending of {artifact}",
    "gone": "the sweep's delete is applied",
    "sweeper crashes": "the sweeper crashes, its delete is on its way",
    "late delete": "a delete whose sender is gone is applied",
    "Q1": "a query starts and finds candidates",
    "Q3": "the query's guard looks, and it answers",
    "refresh the copy": "the replica refreshes its copy of what is live",
}


def tell(world: World, trace: Sequence[Step]) -> list[str]:
    """One line for each step; both writers and all generations keep their names throughout."""
    lines, before = [], first_state(world.scenario)
    for number, (step, after) in enumerate(same_run(world, world, trace), start=1):
        lines.append(f"{number:2}. {_sentence(world.scenario, before, step, after)}")
        before = after
    return lines


def _sentence(scenario: Scenario, before: State, step: Step, after: State) -> str:
    name, _, how = step.name.partition(", ")
    writer = before.writers[step.who] if step.who >= 0 else None
    text = _SENTENCES[name].format(
        writer=f"writer {'AB'[step.who]}",
        what=step.what,
        message=_event(scenario, step.what) if name == "take" else "",
        held=_event(scenario, writer.message) if writer and writer.message >= 0 else "",
        generation=writer.generation if writer else "",
        v1=_became(before, after, step),
        v4=_became(before, after, step),
        taint=_taint(scenario, step.what) if name in ("T1", "T1 begins", "announce", "list first") else "",
        unsent=" and ".join(event.kind for event in before.unsent),
        artifact=scenario.keys[step.what].artifact_id if name in ("sweep", "list", "keep") else "",
    )
    return f"{text} ({how})" if how else text


def _event(scenario: Scenario, message: int) -> str:
    event = scenario.approved[scenario.messages[message]]
    time = "no time" if event.claimed is None else event.claimed
    return f"{event.key.artifact_id}@{time}"


def _taint(scenario: Scenario, number: int) -> str:
    taint = scenario.taints[number]
    time = "no time" if taint.claimed is None else taint.claimed
    return f"{', '.join(taint.artifact_ids)} tainted@{time}"


def _became(before: State, after: State, step: Step) -> str:
    if len(after.generations) > len(before.generations):
        return f"generation {len(after.generations)} is pending"
    if before.rows != after.rows and any(
        row and row.live and (was is None or row.live != was.live)
        for was, row in zip(before.rows, after.rows, strict=True)
    ):
        return f"generation {before.writers[step.who].generation} is live"
    return "nothing becomes live"


def row_of_scenario(scenario: Scenario, explored: Explored) -> str:
    """A row of the page's table of what was explored."""
    faults = f"{scenario.faults} / {scenario.takeovers}"
    return f"| {scenario.name} | {faults} | {explored.states:,} | {explored.steps:,} | {explored.rests} |"


def row_of_mutant(mutant: Mutant, explored: Explored) -> str:
    """A row of the page's table of mutants."""
    found = explored.violation
    assert found is not None
    return f"| {mutant.row} | {mutant.name} | {found.kind} | {found.invariant.split()[0]} | {len(found.trace)} |"


def row_of_variant(variant: Variant, states: int) -> str:
    """A row of the page's table of variants."""
    return f"| {variant.name} | {variant.why} | {states:,} |"
