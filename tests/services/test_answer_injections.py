"""Attacks through the whole pipeline: what a model that obeys them writes reaches nobody, and no secret reaches it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from injections import ATTACKS, Attack
from rig import ANSWER_RULES, Rig
from test_answers import CANONICAL, answered

from dats_common.domain.model import ArtifactKey
from dats_common.domain.quality import QualityRules

SECRET = "the vault opens with marmalade"
CONTROL_TOKENS = re.compile(
    r"<\|\w+\|>|<｜[^｜\n]+｜>|\[/?INST\]|<</?SYS>>|</?(s|think|start_of_turn|end_of_turn)>", re.I
)
WORDS = "what is the limit of a report on invoices with totals and dates"
EVERY_SOURCE = replace(ANSWER_RULES, quality=QualityRules(min_similarity=0.0))
"""An attack may leave little of what its text is about, and is to be in the prompt all the same."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_an_obedient_model_cites_nothing_that_was_not_issued_and_learns_no_secret(
    rig: Rig, attack: Attack
) -> None:
    rig.validated("theirs", f"{WORDS} {SECRET}", tenant_id="other")
    title = " ".join(f"Minutes {attack.retrieved}".split())[:200]
    rig.validated("attacked", f"{WORDS} of the board. {attack.retrieved}", title=title)
    rig.validated("honest", f"{WORDS} of everybody else, who says: the limit is ten.")
    async with rig.writer():
        await rig.all_live("theirs", "attacked", "honest")
    rig.model.respond = lambda _: [attack.answer, " It is ten [1]."]
    history = [{"role": role, "content": content} for role, content in attack.history if role in ("user", "assistant")]
    async with rig.replica(rules=EVERY_SOURCE) as client:
        found = await answered(client, query=f"{attack.question} {WORDS}", chat_history=history)
    [assignment] = rig.model.assigned
    attacked = ArtifactKey("default", "attacked").document_id
    assert attacked in {source.source_id.partition(":")[0] for source in assignment.sources}
    prompt = "\n".join(message.content for message in assignment.messages)
    assert SECRET not in prompt
    assert [message.role for message in assignment.messages].count("system") == 1
    sources = assignment.messages[-1].content
    assert sources.count("<<<") == sources.count(">>>") == 2 * len(assignment.sources)
    assert not CONTROL_TOKENS.search(sources)
    issued = {source.source_id for source in assignment.sources}
    assert {citation.source_id for citation in found.citations} <= issued
    assert set(CANONICAL.findall(found.answer)) <= issued
    left = CANONICAL.sub("", found.answer)
    assert not [forbidden for forbidden in attack.never if forbidden in left]


async def test_a_system_turn_of_the_history_is_refused(rig: Rig) -> None:
    [attack] = [each for each in ATTACKS if any(role == "system" for role, _ in each.history)][:1]
    history = [{"role": role, "content": content} for role, content in attack.history]
    async with rig.replica() as client:
        response = await client.post("/api/v1/answer", json={"query": WORDS, "chat_history": history})
    assert response.status_code == 422
    assert rig.model.assigned == []
