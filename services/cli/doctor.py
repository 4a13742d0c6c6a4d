"""`dats-rag doctor`: what each setting resolved to, what answers, and what to do about the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dats_common.domain.troubles import WHEN_AWAY, troubles
from dats_common.errors import BrokerUnavailable, ConfigurationError, DatsError, LLMConnectionError, LoginRefused
from dats_common.settings import Settings, describe
from services.backends import (
    build_fallback,
    build_token_verifier,
    engine_dir,
    ledger_url,
    open_bus,
    open_encoder,
    open_generator,
    open_index,
    open_key_store,
    open_ledger,
    prepare_index,
    running_engine_port,
)
from services.cli.console import Voice
from services.cli.standing import no_ledger_yet, stand

_CHECK_TIMEOUT_S = 60.0  # importing what a model needs takes half of that on a busy machine


_OTHER_MODEL = "The start is refused: another model wrote the collection"
_REFUSED = "A start is refused for a role, a login or a table"


class _Sign(ConfigurationError):
    """What is wrong, with the heading of the runbook that has more."""

    def __init__(self, detail: str, runbook: str) -> None:
        super().__init__(detail)
        self.runbook = runbook


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the service stands on.

    Attributes:
        state: AWAY: it does not answer, or cannot be used; LOOK: it answers, and somebody should see to it.
        runbook: heading of docs/runbook.md; empty where nothing is wrong.
    """

    name: str
    where: str
    state: Literal["ok", "LOOK", "AWAY"]
    detail: str
    runbook: str = ""


Check = Callable[[Settings], Awaitable[str]]


async def examine(settings: Settings, *, voice: Voice) -> bool:
    """Print the settings and check everything. Returns whether all is well."""
    described = [item for item in describe(settings) if item.origin != "default" or voice.as_json]
    voice.table(
        "Settings that are not the default",
        ("setting", "value", "from"),
        [(item.setting, item.value, item.origin) for item in described],
    )
    # name, where, check, heading when it does not answer, heading when it cannot be used
    checks: list[tuple[str, str, Check, str, str]] = [
        ("data directory", str(settings.data_dir.resolve()), _check_directory, "", "The disk is full"),
        ("ledger", _where_ledger(settings), _check_ledger, WHEN_AWAY["ledger"], _REFUSED),
        (
            "broker",
            "RabbitMQ" if not settings.rabbitmq.is_embedded else "embedded queue",
            _check_broker,
            WHEN_AWAY["broker"],
            WHEN_AWAY["broker"],
        ),
        (
            "encoder",
            settings.lightrag.embedding_model,
            _check_encoder,
            WHEN_AWAY["encoder"],
            WHEN_AWAY["encoder"],
        ),
        ("index", _where_index(settings), _check_index, WHEN_AWAY["index"], WHEN_AWAY["index"]),
        (
            "writer",
            "its last heartbeat in the ledger",
            _check_writer,
            WHEN_AWAY["ledger"],
            WHEN_AWAY["writer"],
        ),
        ("answers", _where_answers(settings), _check_answers, WHEN_AWAY["ollama"], WHEN_AWAY["ollama"]),
        (
            "callers",
            f"authentication {settings.auth.mode}",
            _check_callers,
            WHEN_AWAY["ledger"],
            "Callers are refused",
        ),
    ]
    checked = asyncio.gather(*(_check(settings, *check) for check in checks))
    standing, findings = await asyncio.gather(stand(settings), checked)
    findings += [Finding(each.what, "", "LOOK", each.detail, each.runbook) for each in troubles(standing)]
    voice.table(
        "What answers",
        ("what", "where", "", "detail", "runbook"),
        [(item.name, item.where, item.state, item.detail, item.runbook) for item in findings],
    )
    well = all(item.state == "ok" for item in findings)
    voice.say(
        "All is well."
        if well
        else "Mend what is AWAY, see to what says LOOK: each line says what to do; docs/runbook.md has more."
    )
    voice.result(
        {
            "well": well,
            "settings": {item.setting: {"value": item.value, "from": item.origin} for item in described},
            "checks": [
                {
                    "name": item.name,
                    "where": item.where,
                    "ok": item.state == "ok",
                    "state": item.state,
                    "detail": item.detail,
                    "runbook": item.runbook,
                }
                for item in findings
            ],
        }
    )
    return well


async def _check(
    settings: Settings, name: str, where: str, check: Check, when_away: str, when_unusable: str
) -> Finding:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            return Finding(name, where, "ok", await check(settings))
    except _Sign as sign:
        return Finding(name, where, "AWAY", str(sign), sign.runbook)
    except ConfigurationError as error:
        return Finding(name, where, "AWAY", str(error), when_unusable)
    except DatsError as error:
        return Finding(name, where, "AWAY", str(error), when_away)
    except TimeoutError:
        return Finding(name, where, "AWAY", f"no answer within {_CHECK_TIMEOUT_S:.0f} s", when_away)


def _where_ledger(settings: Settings) -> str:
    return ledger_url(settings) if settings.sql.is_embedded else "PostgreSQL"


def _where_index(settings: Settings) -> str:
    store = settings.qdrant
    return f"embedded engine, {engine_dir(settings)}" if store.is_embedded else store.url or store.host


def _where_answers(settings: Settings) -> str:
    answers = settings.answers
    return "the sources' own sentences" if answers.generator == "extractive" else answers.ollama_base_url


async def _check_answers(settings: Settings) -> str:
    from services.query.wiring import answer_rules

    answer_rules(settings)
    model = settings.answers.chat_model
    async with open_generator(settings) as generator:
        try:
            await generator.require(model)
        except LLMConnectionError as error:
            if build_fallback(settings) is None:
                raise LLMConnectionError(f"{error}; search needs no model. docs/answers.md has what to set") from error
            return f"{error}; meanwhile answers are quoted from the sources"
    return "need no model" if settings.answers.generator == "extractive" else f"{model} is there"


async def _check_directory(settings: Settings) -> str:
    return await asyncio.to_thread(_look_at, settings.data_dir)


def _look_at(directory: Path) -> str:
    if not directory.exists():
        return "will be made at the first start"
    if not os.access(directory, os.W_OK):
        raise ConfigurationError("not writable by this user; choose another with --data")
    return "in use" if any(directory.iterdir()) else "empty"


async def _check_ledger(settings: Settings) -> str:
    if no_ledger_yet(settings):
        return "will be made at the first start"
    try:
        async with open_ledger(settings, acting="query") as ledger:
            counts = await ledger.counts()
    except LoginRefused as error:
        raise _Sign(str(error), _REFUSED) from error
    return (
        f"{counts.live_chunks} live chunks of {counts.live_artifacts} artifacts, {counts.quarantined} quarantined, "
        f"{counts.unsent_events} unsent events"
    )


async def _check_writer(settings: Settings) -> str:
    if no_ledger_yet(settings):
        raise ConfigurationError("no fleet has run here: start one with `dats-rag up`")
    async with open_ledger(settings, acting="query") as ledger:
        beat = await ledger.heartbeat()
    if beat is None or beat.is_stale:
        told = f"it reported {beat.age_s:.0f} s ago" if beat else "none has ever reported"
        raise ConfigurationError(f"{told}, so nothing is indexed: start one with `dats-rag writer` or `dats-rag up`")
    if beat.state == "draining":
        raise ConfigurationError(
            f"{beat.writer_id} was asked to stop, and none is active: start one with `dats-rag writer` or `dats-rag up`"
        )
    return f"{beat.writer_id} is {beat.state}, {beat.backend}"


async def _check_callers(settings: Settings) -> str:
    from services.query.wiring import require_safe_exposure

    require_safe_exposure(settings)
    if settings.auth.mode == "off":
        return "everyone is one caller of the tenant default"
    tokens = build_token_verifier(settings)
    good = await _good_keys(settings)
    if not good and tokens is None:
        raise ConfigurationError("no key is good and no tokens are set up; make one with `dats-rag keys create`")
    return f"{good} good keys" + (f", tokens of {settings.auth.jwt.issuer}" if tokens else "")


async def _good_keys(settings: Settings) -> int:
    if no_ledger_yet(settings):
        return 0  # looking must not make one
    async with open_key_store(settings, acting="query") as keys:
        return sum(key.state == "good" for key in await keys.list_keys())


async def _check_broker(settings: Settings) -> str:
    if settings.rabbitmq.is_embedded and not settings.data_dir.exists():
        return "will be made at the first start"
    try:
        async with open_bus(settings, name="doctor", patient=False) as bus:
            await bus.ping()
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"{error}: is it running, and is its address right?") from error
    return "answers"


async def _check_encoder(settings: Settings) -> str:
    async with open_encoder(settings, for_writer=True) as encoder:
        vectors = await encoder.encode(["ready?"], kind="query")
    return f"{encoder.backend}, {vectors.shape[1]} dimensions"


async def _check_index(settings: Settings) -> str:
    if settings.qdrant.is_embedded:
        running_engine_port(settings)  # says how to start one
    async with open_index(settings) as index, open_encoder(settings, for_writer=False) as encoder:
        try:
            await prepare_index(index, encoder)
        except ConfigurationError as error:
            raise _Sign(str(error), _OTHER_MODEL) from error
        return f"{await index.count()} points, the model agrees"
