"""How each model counts, learned from its server in the background: its own tokenizer, and what its template adds.

Nobody waits for it. What the vocabulary gives is held against the server's own counts before it is used: a tokenizer
that disagrees with the server about a text that is hard to split is not the model's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dats_common.adapters.ollama.client import OllamaClient, TooManyBytes
from dats_common.adapters.ollama.names import full_name
from dats_common.adapters.ollama.vocabulary import NoTokenizer, read_vocabulary
from dats_common.adapters.ollama.wire import SHOW
from dats_common.domain.prompt import Message
from dats_common.domain.tokens import EXACT_MARGIN, CountBasis, TemplateTokens
from dats_common.errors import RAGServiceError
from dats_common.ports import TokenCounter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

MAX_SHOWN_BYTES = 64 * 1024 * 1024
"""A vocabulary of 300,000 tokens with its merges, scores and types is 20 MB."""

AGAIN_S = 300.0
"""After a server that was away, busy or slow is asked again; what it cannot give is not asked for again."""

_WORD = "Hello"
_HARD_TO_SPLIT = """def total(items):  # 1234567 rows, 98.6 %
    \treturn {"sum": sum(i['price'] for i in items), 'n': 20250731}


It's what they'd said: "WE'LL see", didn't I'M -- 3.14159 >= 2.71828; user_id=42; https://example.org/a?b=c&d=1000000
Die Größe der Fläche beträgt 1.250,75 m². Où est-elle ? Сначала система находит 2048 фрагментов.
검색 증강 생성 12345, 検索拡張生成とは何か。 知识库中的文档片段。 مرحبا بالعالم 🙂🚀 naïve café
|  name  |   value   |
|--------|-----------|
9f86d081884c7d659a2feaa0c55ad015"""
"""Figures, contractions, indentation, signs and other scripts: where the rules by which words are split differ."""


class Measure(Protocol):
    """Asks the server how many tokens a prompt has in its own count; None: it does not say."""

    def __call__(self, model: str, messages: Sequence[Message], *, window_tokens: int) -> Awaitable[int | None]: ...


@dataclass(frozen=True, slots=True)
class _Learned:
    """Of one version of a model.

    Attributes:
        tokenizer: None: it cannot be had, and `basis` says why.
    """

    digest: str
    tokenizer: Tokenizer | None
    source: str
    template: TemplateTokens | None = None


class OwnTokens:
    """What is known of how the models of one server count. For one event loop."""

    def __init__(
        self,
        client: OllamaClient,
        *,
        require: Callable[[str], Awaitable[None]],
        measure: Measure,
        within_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._require = require
        self._measure = measure
        self._within_s = within_s
        self._clock = clock
        self._digests: dict[str, str] = {}
        self._learned: dict[str, _Learned] = {}
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._again_s: dict[str, float] = {}

    def saw(self, model: str, *, digest: str) -> None:
        """The server has this version of the model now; what was learned of another one is void."""
        self._digests[full_name(model)] = digest

    def of(self, model: str, *, window_tokens: int) -> _Learned | None:
        """What is known now; None: nothing yet. What is missing is learned in the background, once at a time.

        Args:
            window_tokens: as chats name it: another one would have the server load the model anew.
        """
        name = full_name(model)
        if (learned := self._known(name)) is None and self._clock() >= self._again_s.get(name, -math.inf):
            self._begin(model, window_tokens)
        return learned

    async def learn(self, model: str, *, window_tokens: int) -> None:
        """Wait until all is known that can be. Raises nothing: what cannot be learned is estimated."""
        if self._known(full_name(model)) is None:
            await asyncio.shield(self._begin(model, window_tokens))

    async def close(self) -> None:
        """Give up what is being learned."""
        learning = list(self._learning.values())
        for task in learning:
            task.cancel()
        await asyncio.gather(*learning, return_exceptions=True)

    def _known(self, name: str) -> _Learned | None:
        learned = self._learned.get(name)
        return learned if learned and learned.digest == self._digests.get(name) else None

    def _begin(self, model: str, window_tokens: int) -> asyncio.Task[None]:
        name = full_name(model)
        task = self._learning.get(name)
        if task is None or task.done():
            learning = self._learn(model, name, window_tokens)
            task = self._learning[name] = asyncio.create_task(learning, name=f"ollama-tokens-{model}")
        return task

    async def _learn(self, model: str, name: str, window_tokens: int) -> None:
        try:
            await self._require(model)
            digest = self._digests[name]
            try:
                self._learned[name] = await self._tokens_of(model, digest, window_tokens)
            except (NoTokenizer, TooManyBytes) as error:
                self._learned[name] = _Learned(digest, None, f"estimate: {error}")
                log.warning("tokens_estimated: %s: %s", name, error)
        except Exception as error:  # also what nobody foresaw: without the pause each count would begin anew
            self._again_s[name] = self._clock() + AGAIN_S
            reason = error if isinstance(error, RAGServiceError) else type(error).__name__
            log.warning("tokens_not_learned: %s: %s", name, reason)

    async def _tokens_of(self, model: str, digest: str, window_tokens: int) -> _Learned:
        body = {"model": model, "verbose": True}
        shown = await self._client.fetch("POST", SHOW, within_s=self._within_s, max_bytes=MAX_SHOWN_BYTES, body=body)
        # A thread, though much of it holds the interpreter: with 151,000 tokens the loop stood still for 0.15 s, for
        # 0.5 s while others wanted both cores (measured); once for each version of a model.
        vocabulary = await asyncio.to_thread(read_vocabulary, shown)
        template = await self._template(model, vocabulary.tokenizer, window_tokens)
        source = f"tokenizer of {full_name(model)[:80]} ({vocabulary.pre}, {digest[:12] or 'no digest'}), by its server"
        return _Learned(digest, vocabulary.tokenizer, source, template)

    async def _template(self, model: str, tokenizer: Tokenizer, window_tokens: int) -> TemplateTokens:
        """What the template adds, by the server's counts of prompts whose texts are known.

        Raises: NoTokenizer: its counts are not those of this tokenizer, or leave out what it remembers of a prompt
            before, and so are none of a whole prompt; RAGServiceError.
        """
        word, hard = count_tokens(tokenizer, _WORD), count_tokens(tokenizer, _HARD_TO_SPLIT)
        asked = Message("user", _WORD)
        answered = Message("assistant", _WORD)
        prompts = [
            (Message("system", _WORD), asked),
            (Message("system", _WORD), asked, answered, asked),
            (Message("system", _HARD_TO_SPLIT), asked),
        ]
        counts = [await self._measure(model, prompt, window_tokens=window_tokens) for prompt in prompts]
        if None in counts:
            raise NoTokenizer("the model server does not say how long a prompt is")
        short, conversation, difficult = (count or 0 for count in counts)
        prompt, turn = short - 2 * word, conversation - short - 2 * word
        if min(prompt, turn) < 0 or abs(difficult - short - (hard - word)) > hard * EXACT_MARGIN:
            raise NoTokenizer("the model server's counts are not those of the vocabulary that it shows")
        return TemplateTokens(prompt, turn)


class OwnTokenCounter:
    """Implements `ports.TokenCounter`: by a model's own tokenizer where its server shows one, else as `otherwise`.

    A count that `otherwise` has exact stays its own: an operator who names a file means it.
    """

    def __init__(self, own: OwnTokens, *, windows: Mapping[str, int], otherwise: TokenCounter) -> None:
        """Count over what `own` learns.

        Args:
            windows: of each model, in tokens, as its chats name it.
        """
        self._own = own
        self._windows = windows
        self._otherwise = otherwise

    def count(self, text: str, *, model: str) -> int:
        """See `ports.TokenCounter`."""
        learned = self._of(model)
        if learned is None or learned.tokenizer is None or self._otherwise.basis(model).is_exact:
            return self._otherwise.count(text, model=model)
        return count_tokens(learned.tokenizer, text)

    def basis(self, model: str) -> CountBasis:
        """See `ports.TokenCounter`."""
        otherwise = self._otherwise.basis(model)
        learned = self._of(model)
        if learned is None:
            return otherwise
        if otherwise.is_exact:
            return replace(otherwise, template=learned.template)
        if learned.tokenizer is None:
            return replace(otherwise, source=learned.source)
        return CountBasis(learned.source, EXACT_MARGIN, learned.template)

    def _of(self, model: str) -> _Learned | None:
        return self._own.of(model, window_tokens=self._windows[model])


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of a text alone, in which nothing is a control token."""
    text = text.encode(errors="replace").decode()  # a lone surrogate is no text for a tokenizer
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
