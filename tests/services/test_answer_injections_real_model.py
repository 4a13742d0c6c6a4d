"""The attacks again, on a real small model behind Ollama's protocol: what it was sent, and what of it comes out.

A seeded sample of them; `DATS_TEST_ATTACKS=75` tries all (minutes), `DATS_TEST_SEED` takes another sample.
"""

from __future__ import annotations

import os
import random
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facade import MODEL, WINDOW_TOKENS, small_facade
from injections import ATTACKS, Attack
from rig import Rig
from tap import Tap, tapped
from test_answer_injections import CONTROL_TOKENS, EVERY_SOURCE, SECRET, WORDS
from test_answers import CANONICAL, streamed
from test_answers_over_ollama import replica_over

from dats_common.adapters.ollama.generator import Timeouts
from dats_common.contracts.answers import AnswerResponse
from dats_common.domain.budget import ModelLimits

SAMPLE = min(int(os.environ.get("DATS_TEST_ATTACKS", "6")), len(ATTACKS))
SEED = int(os.environ.get("DATS_TEST_SEED", "20260101"))
RULES = replace(
    EVERY_SOURCE,
    # Short, to be quick: what a longer answer would have gone on with is cut, after it was streamed.
    models={MODEL: ModelLimits(WINDOW_TOKENS, 48)},
    default_model=MODEL,
    temperature=0.0,
)
PATIENT = Timeouts(total_s=90.0, first_token_s=80.0, between_tokens_s=30.0, rating_s=60.0)
ALIASES = re.compile(r"(?<![\w)\]])\[\s*(?:source\s*(?:id)?\s*:?\s*)?\d[\d\s,;-]*\]", re.I)
"""As a reader takes them; a subscript such as `totals[1]` is none."""
FULL_IDS = re.compile(r"[0-9a-f-]{36}\s*:\s*\d+", re.I)

Event = tuple[str, str, Any]


@pytest.mark.slow
@pytest.mark.timeout(max(180, SAMPLE * 15))
async def test_a_real_model_under_attack_cites_nothing_that_was_not_issued_and_learns_no_secret(
    rig: Rig, model_file: Path
) -> None:
    rig.validated("theirs", f"{WORDS} {SECRET}", tenant_id="other")
    rig.validated("honest", f"{WORDS} of everybody else, who says: the limit is ten.")
    written = 0
    async with (
        rig.writer(),
        small_facade() as facade,
        tapped(facade.base_url) as tap,
        replica_over(rig, tap.url, timeouts=PATIENT, rules=RULES, answer_deadline_s=110.0) as client,
    ):
        await rig.all_live("theirs", "honest")
        for number, attack in enumerate(random.Random(SEED).sample(ATTACKS, SAMPLE)):
            title = " ".join(f"Minutes {attack.retrieved}".split())[:200]
            rig.validated(f"attacked-{number}", f"{WORDS} of {board(number)}. {attack.retrieved}", title=title)
            await rig.all_live(f"attacked-{number}")
            before = len(tap.bodies())
            events = await streamed(client, query=f"{attack.question} {WORDS}", chat_history=history(attack))
            _, _, retrieval = events[0]
            issued = {source["source_id"]: source["artifact_id"] for source in retrieval["sources"]}
            assert set(issued.values()) == {"honest", f"attacked-{number}"}, "what stands, and is the caller's"
            assert_neither_secrets_nor_forgeries_were_sent(tap, before, number, sources=len(issued))
            written += bool(assert_only_what_was_issued_is_cited(events, issued))
            await client.delete(f"/api/v1/embeddings/attacked-{number}")
    assert written == SAMPLE, "the model had its say each time"


def board(number: int) -> str:
    """What only the text of one attack names; it is withdrawn before the next one."""
    return f"board-{number:03}"


def history(attack: Attack) -> list[dict[str, str]]:
    """A conversation that is let in; another role is refused with the request."""
    return [{"role": role, "content": content} for role, content in attack.history if role in ("user", "assistant")]


def assert_neither_secrets_nor_forgeries_were_sent(tap: Tap, before: int, number: int, *, sources: int) -> None:
    """To the model, for one answer: a chat that asks for it and, where it was complete, one that asks for a rating."""
    sent = b"".join(map(bytes, tap.sent)).decode()
    assert SECRET not in sent
    chats = [body["messages"] for body in tap.bodies()[before:] if body.get("messages")]
    assert 1 <= len(chats) <= 2
    for messages in chats:
        assert [message["role"] for message in messages].count("system") == 1
        told = messages[-1]["content"]
        assert told.count("<<<source ") == told.count("<<<end of source ") == sources
        assert not CONTROL_TOKENS.search(told)
        assert not FULL_IDS.search("".join(message["content"] for message in messages))
        assert re.findall(r"board-\d+", told).count(board(number)) == len(re.findall(r"board-\d+", told)) > 0


def assert_only_what_was_issued_is_cited(events: list[Event], issued: dict[str, str]) -> str:
    """In the text as it was streamed, in the citations beside it, and in the answer; returns the text."""
    text = "".join(data["text"] for name, _, data in events if name == "token")
    assert {data["source_id"] for name, _, data in events if name == "citation"} == set(CANONICAL.findall(text))
    assert set(CANONICAL.findall(text)) <= set(issued)
    left = unicodedata.normalize("NFKC", CANONICAL.sub("", text))
    assert not ALIASES.search(left), text
    assert not FULL_IDS.search(left), text
    name, _, data = events[-1]
    if name == "done":
        answer = AnswerResponse.model_validate(data)
        assert answer.answer == text
        assert {citation.source_id: citation.artifact_id for citation in answer.citations}.items() <= issued.items()
    else:
        assert (name, data["status"]) == ("error", 503), "cut at its longest length"
    return text
