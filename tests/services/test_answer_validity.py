"""Citations are valid by construction: whatever a model writes, and whatever is withdrawn meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from rig import Rig
from test_answers import answered, stored

from dats_common.domain.model import ArtifactKey, EventTime, Taint
from dats_common.records import Assignment

TOPICS = ("invoices", "orders", "payments", "refunds", "contracts", "shipments", "audits", "budgets", "taxes", "loans")
ANSWERS = 1000
TAINT_EVERY = 25
MARKERS = re.compile(r"\[[^\]\n]{0,80}\]|【[^】\n]{0,80}】|[0-9a-f-]{36}:\d+")
CANONICAL = re.compile(r"\[SourceId: ([0-9a-f-]{36}:\d+)\]")


class Unreliable:
    """Cites sources that it was given, sources that it was not given, and things that only look like sources."""

    def __init__(self, seed: int, known: Sequence[str]) -> None:
        self._rng = random.Random(seed)
        self._known = known

    def __call__(self, assignment: Assignment) -> list[str]:
        sentences = [f"{source.text} {self._marker(assignment)}. " for source in assignment.sources]
        text = "".join(sentences)
        cuts = sorted(self._rng.sample(range(len(text)), k=min(9, len(text))))
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _marker(self, assignment: Assignment) -> str:
        given = self._rng.choice(assignment.sources)
        other = self._rng.choice(self._known)
        return self._rng.choice(
            [
                f"[{given.alias}]",
                f"[{given.alias}]",
                f"[SourceId: {given.source_id}]",
                f"[{given.alias}, {given.alias + 40}]",
                f"[{len(assignment.sources) + 1}]",
                f"[SourceId: {other}]",
                f"[SourceId: {given.source_id}9]",
                f"【{given.alias}】",
                f"[source {given.alias}]",
                "[0]",
            ]
        )


async def test_of_a_thousand_answers_every_citation_is_a_live_chunk_of_its_prompt(rig: Rig) -> None:
    ids = [f"{topic}-{number}" for topic in TOPICS for number in range(8)]
    for artifact in ids:
        rig.validated(artifact, f"a report on {artifact.partition('-')[0]} number {artifact} with totals and dates")
    async with rig.writer():
        await rig.all_live(*ids)
    rng = random.Random(7)
    rig.model.respond = Unreliable(11, [f"{ArtifactKey('default', artifact).document_id}:0" for artifact in ids])
    withdrawn: set[str] = set()
    cited = grounded = 0
    async with rig.replica() as client:
        for number in range(ANSWERS):
            if number % TAINT_EVERY == 0:
                gone = rng.choice(sorted(set(ids) - withdrawn))
                await rig.ledger.taint(Taint("default", (gone,), EventTime()), skew_s=60.0)
                withdrawn.add(gone)
            rig.model.assigned.clear()
            found = await answered(client, query=f"a report on {rng.choice(TOPICS)}")
            if not rig.model.assigned:
                continue
            given = {source.source_id for source in rig.model.assigned[-1].sources}
            named = [citation.source_id for citation in found.citations]
            assert set(named) <= given
            assert len(named) == len(set(named))
            assert {citation.artifact_id for citation in found.citations}.isdisjoint(withdrawn)
            assert set(CANONICAL.findall(found.answer)) == set(named)
            assert not MARKERS.findall(CANONICAL.sub("", found.answer)), "what looks like a citation is one"
            cited += len(named)
            grounded += found.grounded
        assert (await stored(client, found.id)).status == "standing"
    assert cited > ANSWERS
    assert grounded >= 0.9 * ANSWERS
