"""Events from JSON lines to the broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dats_common.contracts.events import parse_validated
from dats_common.contracts.readable import parse_tainted, summary
from dats_common.contracts.strict_json import parse_object
from dats_common.contracts.topology import ARTIFACT_TAINTED, TASK_VALIDATED
from dats_common.errors import ConfigurationError, InvalidInput
from dats_common.ports import Bus
from dats_common.settings import Settings
from services.backends import bus_file, open_bus
from services.cli.console import Voice
from services.cli.maintenance import no_fleet

_IN_FLIGHT = 64


@dataclass(slots=True)
class Published:
    """How many went out, and why others did not (by line)."""

    published: int = 0
    refused: list[str] = field(default_factory=list)


async def publish_lines(settings: Settings, lines: Iterable[bytes], *, event_type: str, voice: Voice) -> Published:
    """Publish each line; a line that breaks the contract is refused here, before it becomes a dead letter there.

    Raises: ConfigurationError: the queue would be an embedded one that no fleet has made.
    """
    if settings.rabbitmq.is_embedded and not bus_file(settings).exists():
        # A queue made here would take the events, and nobody would ever read it.
        raise ConfigurationError(no_fleet(settings))
    done = Published()
    async with open_bus(settings, name="publish", patient=False) as bus:
        with voice.progress("publishing", None) as bar:
            batch: list[tuple[str, dict[str, Any]]] = []
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    batch.append(_event(line, event_type))
                except InvalidInput as error:
                    done.refused.append(f"line {number}: {error}")
                    voice.note(f"refused: line {number}: {error}")
                if len(batch) == _IN_FLIGHT:
                    done.published += await _send(bus, batch)
                    batch = []
                    bar.set(done.published)
            done.published += await _send(bus, batch)
            bar.set(done.published)
    return done


def _event(line: bytes, event_type: str) -> tuple[str, dict[str, Any]]:
    envelope = parse_object(line)
    kind = envelope.get("type") or event_type
    if kind == TASK_VALIDATED:
        parse_validated(line, event_type=kind)
    elif kind == ARTIFACT_TAINTED:
        _, flaws = parse_tainted(line)
        if flaws:
            raise InvalidInput(
                summary(flaws)
            )  # the writer would take it as far as it can be read; here it can be mended
    else:
        raise InvalidInput(f"type: {TASK_VALIDATED} or {ARTIFACT_TAINTED} is needed")
    return kind, envelope


async def _send(bus: Bus, batch: list[tuple[str, dict[str, Any]]]) -> int:
    """Publish them side by side. Raises: BrokerUnavailable: the first that was not taken says why."""
    await asyncio.gather(
        *(bus.publish(kind, event, event_id=str(event.get("id") or uuid.uuid4())) for kind, event in batch)
    )
    return len(batch)
