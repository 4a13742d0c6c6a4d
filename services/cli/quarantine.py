"""`dats-rag quarantine`: versions that could not be ordered, and an operator's word on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dats_common.contracts.events import rfc3339
from dats_common.errors import Refused
from dats_common.maintenance.readmission import readmit
from dats_common.records import Quarantined
from dats_common.settings import Settings
from services.backends import open_bus, open_ledger
from services.cli.console import Voice
from services.cli.maintenance import require_fleet


async def show_list(settings: Settings, *, limit: int, after: int, with_content: bool, voice: Voice) -> None:
    """One page of the open entries."""
    require_fleet(settings)
    async with open_ledger(settings) as ledger:
        entries = await ledger.quarantined(limit=limit, after=after, with_content=with_content)
        waiting = (await ledger.counts()).quarantined
    voice.result({"waiting": waiting, "entries": [_described(entry) for entry in entries]})
    voice.table(
        f"{len(entries)} of {waiting} quarantined versions",
        ("entry", "tenant", "artifact", "version", "age", "reason"),
        [
            (
                str(entry.entry_id),
                entry.key.tenant_id,
                entry.key.artifact_id,
                rfc3339(entry.version),
                f"{entry.age_s:.0f} s",
                entry.reason,
            )
            for entry in entries
        ],
    )
    for entry in entries:
        if entry.content is not None:
            voice.say(f"--- {entry.entry_id}\n{entry.content}")


async def readmit_all(settings: Settings, entries: Sequence[int], *, voice: Voice) -> bool:
    """Returns whether all of them are on their way to the writer."""
    require_fleet(settings)
    readmitted: list[int] = []
    refused: dict[int, str] = {}
    async with open_ledger(settings) as ledger, open_bus(settings, name="quarantine", patient=False) as bus:
        for entry_id in dict.fromkeys(entries):
            try:
                event = await readmit(entry_id, quarantine=ledger, bus=bus)
            except Refused as refusal:
                refused[entry_id] = str(refusal)
                voice.note(str(refusal))
            else:
                readmitted.append(entry_id)
                voice.say(f"{entry_id}: {event.key.artifact_id} is on its way to the writer")
    voice.result({"readmitted": readmitted, "refused": refused})
    return not refused


def _described(entry: Quarantined) -> dict[str, Any]:
    described: dict[str, Any] = {
        "entry": entry.entry_id,
        "tenant_id": entry.key.tenant_id,
        "artifact_id": entry.key.artifact_id,
        "version": rfc3339(entry.version),
        "reason": entry.reason,
        "event_id": entry.event_id,
        "age_s": round(entry.age_s, 1),
        "size_chars": entry.size_chars,
    }
    return described if entry.content is None else {**described, "content": entry.content}
