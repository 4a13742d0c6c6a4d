"""POST /answer over a real model: what we count of a prompt is what the model says that it read of it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from facade import MODEL, WINDOW_TOKENS, packed, rewritten, small_facade
from rig import ANSWER_RULES, Rig, Words, open_rig
from scripted_ollama import BYTE_VOCABULARY, bytes_and_marks, open_scripted_ollama
from scripted_ollama import MODEL as SCRIPTED_MODEL
from test_http import assert_problem

from dats_common.adapters.ollama import OllamaGenerator, OwnTokenCounter, Timeouts, open_ollama
from dats_common.adapters.token_counters import build_token_counter
from dats_common.domain.access import Principal
from dats_common.domain.budget import ModelLimits
from dats_common.domain.tokens import EXACT_MARGIN
from dats_common.embedded.ollama.gguf import read_header
from dats_common.fingerprint import fingerprint
from dats_common.ports import TokenCounter
from dats_common.records import AnswerRecord
from services.query.answer_bodies import body_of
from services.query.answering import AnswerEngine, AnswerRules
from services.query.engine import QueryEngine

PATIENT = Timeouts(total_s=100.0, first_token_s=90.0, between_tokens_s=30.0, rating_s=60.0)
RULES = replace(ANSWER_RULES, models={MODEL: ModelLimits(WINDOW_TOKENS, 600)}, default_model=MODEL, temperature=0.0)
ADMIN = Principal(roles=frozenset({"admin"}))

SOURCES = {
    "invoices": "A failed invoice payment is retried three times. After that a person decides about the invoice. " * 2,
    "code": "```python\ndef retry(invoice, attempts=3):\n    for attempt in range(1, attempts + 1):\n"
    "        if pay(invoice) == 200:\n            return {'paid': True, 'attempt': attempt}\n    raise Failed\n```\n",
    "figures": "| invoice | total | date |\n|---------|-------|------|\n"
    + "".join(f"| INV-{20000 + n * 37} | {n * 1234.56:,.2f} | 2025-{n % 12 + 1:02}-17 |\n" for n in range(6)),
    "foreign": "Rechnung: Die Zahlung wird dreimal wiederholt. Счёт invoice: оплата повторяется трижды. "
    "发票 invoice 付款失败后会重试三次。請求書は三回まで再試行されます。송장 invoice 결제는 세 번 재시도됩니다.",
    "emoji": "Invoice paid 🎉🎉 retry failed 😢👩‍👩‍👧 🇩🇪🇫🇷 thumbs 👍🏽 done ✅ invoice → archive ½ ² ™ “quotes” …",
}
HISTORY = [
    {"role": role, "content": f"{text} number {number}."}
    for number in range(3)
    for role, text in (("user", "How is invoice"), ("assistant", "It was retried once, and paid then: invoice"))
]
QUESTIONS: dict[str, dict[str, Any]] = {
    "short": {"query": "invoice?"},
    "a sentence": {"query": "How often is a failed invoice payment retried?"},
    "one source": {"query": "How often is a failed invoice payment retried?", "max_context_chunks": 1},
    "long": {"query": "What of the invoice? " + "It was sent, and sent again, and nobody paid this invoice. " * 25},
    "code": {
        "query": "Why does `retry(invoice, attempts=3)` raise Failed?\n\n    if x<=y && !z {\n\t\treturn i**2\n    }"
    },
    "figures": {"query": "What is the total of invoice INV-20740 of 2025-09-17, 24,691.20 or 1234567890?"},
    "German": {"query": "Wie oft wird die Zahlung der Rechnung invoice wiederholt, außer am 31.12.?"},
    "Russian": {"query": "Сколько раз повторяется оплата счёта invoice?"},
    "Chinese": {"query": "发票 invoice 付款失败后会重试几次？"},
    "Korean": {"query": "송장 invoice 결제는 몇 번 재시도됩니까?"},
    "emoji": {"query": "Is the invoice 🎉 paid 👩‍👩‍👧 or 😢 not 🇩🇪?"},
    "control tokens": {"query": "Is <|im_end|>\n<|im_start|>system the invoice of <|endoftext|> </s> [INST] paid?"},
    "history": {"query": "And the last invoice?", "chat_history": HISTORY},
    "long history": {"query": "And the last invoice?", "chat_history": HISTORY * 4},
    "one turn, ill formed": {
        "query": "And the invoice?",
        "chat_history": [{"role": "user", "content": "ﬁne \u200bﷺ ½\n\n\n "}],
    },
}


@dataclass
class CountingRig(Rig):
    """A world whose replicas count with a counter of the test."""

    counter: TokenCounter = field(default_factory=Words)

    def answers(self, engine: QueryEngine, *, rules: AnswerRules = RULES, **parts: Any) -> AnswerEngine:
        return AnswerEngine(
            retrieval=engine,
            counter=self.counter,
            owners=self.owners,
            rules=rules,
            body_of=body_of,
            **parts,
        )


@dataclass
class World:
    """A replica, and where its answers are kept."""

    rig: Rig
    client: httpx.AsyncClient

    async def kept(self, **asked: Any) -> AnswerRecord:
        """The evidence of one answer."""
        response = await self.client.post("/api/v1/answer", json=asked)
        assert response.status_code == 200, response.text
        answer_id = response.json()["id"]
        stored = await self.client.get(f"/api/v1/answers/{answer_id}")
        assert stored.json()["status"] == "standing"
        return (await self.rig.evidence.find(answer_id, ADMIN, actor="test")).record


def terse(file: Path, copy: Path) -> Path:
    """The same model, whose writing a full stop or a comma ends: it would hardly come to an end by itself."""
    tokens: Any = read_header(file, arrays=True).metadata["tokenizer.ggml.tokens"]
    ends = {("eos", "eos"): ".", ("padding", "eot"): ","}
    changes = {
        packed(f"tokenizer.ggml.{old}_token_id") + struct.pack("<II", 4, tokens.index("<|im_end|>")): packed(
            f"tokenizer.ggml.{new}_token_id"
        )
        + struct.pack("<II", 4, tokens.index(token))
        for (old, new), token in ends.items()
    }
    return rewritten(file, copy, changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("terse")
    async with (
        small_facade(file=terse(model_file, folder / "model.gguf")) as facade,
        open_ollama(facade.base_url, timeouts=PATIENT, concurrent=2, queue=8, keep_alive_s=60) as generator,
        open_rig(folder) as plain,
    ):
        rig = await counting_rig(plain, generator, model=MODEL)
        async with rig.replica(generator=generator, rules=RULES, answer_deadline_s=110.0) as client:
            yield World(rig, client)


async def counting_rig(plain: Rig, generator: OllamaGenerator, *, model: str) -> CountingRig:
    """The sources, indexed, and a counter that has learned how the model counts."""
    windows = {name: limits.context_window for name, limits in (RULES.models | ANSWER_RULES.models).items()}
    estimate = build_token_counter({}, estimate=lambda text: len(plain.encoder.token_spans(text)))
    counter = OwnTokenCounter(generator.tokens, windows=windows, otherwise=estimate)
    rig = CountingRig(plain.ledger, plain.evidence, plain.owners, counter=counter)
    await rig.index.prepare(await fingerprint(rig.encoder))
    for name, content in SOURCES.items():
        rig.validated(name, content, title=f"About {name}")
    async with rig.writer():
        await rig.all_live(*SOURCES)
    await generator.tokens.learn(model, window_tokens=windows[model])
    return rig


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_our_count_is_the_models_within_two_per_cent_and_both_are_kept(
    world: World, asked: dict[str, Any]
) -> None:
    kept = await world.kept(**asked)
    assert kept.prompt_tokens
    assert abs(kept.counted_tokens - kept.prompt_tokens) <= EXACT_MARGIN * kept.prompt_tokens
    assert kept.counted_by.startswith(f"tokenizer of {MODEL} (smollm, ")
    assert kept.counted_by.endswith("within 2%")


@pytest.mark.parametrize(
    ("read", "status"), [(1.0, 200), (0.985, 200), (0.96, 503), (0.5, 503)], ids=["all", "nearly all", "less", "half"]
)
async def test_with_the_models_own_tokenizer_a_cut_of_a_few_per_cent_is_an_error(
    rig: Rig, read: float, status: int
) -> None:
    async with (
        open_scripted_ollama() as server,
        open_ollama(server.url, timeouts=PATIENT, concurrent=2, queue=2, keep_alive_s=60) as generator,
    ):
        server.model_info, server.count_tokens = BYTE_VOCABULARY, bytes_and_marks
        counting = await counting_rig(rig, generator, model=SCRIPTED_MODEL)
        server.count_tokens = lambda messages: round(read * bytes_and_marks(messages))
        async with counting.replica(generator=generator, rules=ANSWER_RULES) as client:
            response = await client.post("/api/v1/answer", json={"query": "How often is an invoice payment retried?"})
            assert response.status_code == status
            if status == 503:
                assert "its window was cut" in assert_problem(response, 503).detail
            counted = (await client.get("/metrics")).text
            assert f"rag_context_truncations_total {float(status == 503)}" in counted
