"""`dats-rag dlq`: what operators see of dead letters and do with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dats_common.contracts.events import rfc3339
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.errors import ConfigurationError
from dats_common.ports import OperatorsBus
from dats_common.records import DeadLetter
from dats_common.settings import Settings
from services.backends import bus_file, open_bus
from services.cli.console import Voice
from services.cli.maintenance import no_fleet


@asynccontextmanager
async def _bus(settings: Settings) -> AsyncIterator[OperatorsBus]:
    if settings.rabbitmq.is_embedded and not bus_file(settings).exists():
        raise ConfigurationError(no_fleet(settings))
    async with open_bus(settings, name="dlq", patient=False) as bus:
        yield bus


async def show_list(settings: Settings, *, limit: int, voice: Voice) -> None:
    """The oldest ones, without their bodies."""
    async with _bus(settings) as bus:
        waiting = await bus.depth(DEAD_LETTERS_QUEUE)
        letters = await bus.dead_letters(limit=limit)
    voice.result({"waiting": waiting, "dead_letters": [_described(letter) for letter in letters]})
    voice.table(
        f"{len(letters)} of {waiting} dead letters",
        ("id", "reason", "from", "attempts", "type", "bytes", "first died"),
        [_row(letter) for letter in letters],
    )


async def show_one(settings: Settings, letter_id: str, *, with_body: bool, voice: Voice) -> bool:
    """Returns whether there is such a letter."""
    async with _bus(settings) as bus:
        found = await bus.dead_letters(limit=1, only=[letter_id], with_bodies=with_body)
    if not found:
        voice.note(f"there is no dead letter {letter_id}")
        return False
    described = _described(found[0])
    voice.result(described)
    voice.table(
        letter_id, ("what", "value"), [(name, str(value)) for name, value in described.items() if name != "body"]
    )
    if found[0].body is not None:
        voice.say(_harmless(found[0].body))
    return True


async def replay(settings: Settings, wanted: Sequence[str] | None, *, voice: Voice) -> bool:
    """Returns whether all that were wanted have been moved."""
    async with _bus(settings) as bus:
        replayed = await bus.replay_dead_letters(only=wanted)
        left = await bus.dead_letters(limit=1) if wanted is None else ()
    missed = sorted({*(wanted or ())} - {*replayed}) or [letter.letter_id for letter in left]
    voice.result({"replayed": replayed, "not_replayed": missed})
    voice.say(f"{len(replayed)} replayed")
    if missed:
        voice.note(f"not replayed, as not there or from no queue of ours: {', '.join(missed)}")
    return not missed


async def drop(settings: Settings, wanted: Sequence[str] | None, *, voice: Voice) -> bool:
    """Returns whether all that were wanted were there."""
    async with _bus(settings) as bus:
        dropped = await bus.drop_dead_letters(only=wanted)
    missed = sorted({*(wanted or ())} - {*dropped})
    voice.result({"dropped": dropped, "not_found": missed})
    voice.say(f"{len(dropped)} dropped")
    if missed:
        voice.note(f"not there: {', '.join(missed)}")
    return not missed


def _described(letter: DeadLetter) -> dict[str, Any]:
    death = letter.death
    described: dict[str, Any] = {
        "id": letter.letter_id,
        "reason": death.reason,
        "source_queue": death.source_queue,
        "attempts": death.attempts,
        "event_type": death.event_type,
        "size_bytes": letter.size_bytes,
        "first_died_at": None if death.first_died_at is None else rfc3339(death.first_died_at),
        "replayable": death.is_replayable,
    }
    return described if letter.body is None else {**described, "body": letter.body.decode(errors="replace")}


def _row(letter: DeadLetter) -> tuple[str, ...]:
    death = letter.death
    died = "" if death.first_died_at is None else rfc3339(death.first_died_at)[:19]
    return (
        letter.letter_id,
        death.reason,
        death.source_queue,
        str(death.attempts),
        death.event_type,
        str(letter.size_bytes),
        died,
    )


def _harmless(body: bytes) -> str:
    """Text that cannot speak to the terminal: a foreign producer wrote it."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}"
        for sign in body.decode(errors="replace")
    )
