"""`dats-rag untaint`: what a taint took away, and showing it again once an operator has named that taint."""

from __future__ import annotations

from dats_common.contracts.events import parse_time, rfc3339
from dats_common.domain.model import DEFAULT_TENANT, ArtifactKey
from dats_common.maintenance.readmission import untaint
from dats_common.settings import Settings
from services.backends import open_bus, open_ledger
from services.cli.console import Voice
from services.cli.maintenance import require_fleet
from services.cli.options import actor


async def show_withdrawn(
    settings: Settings, artifact_id: str, *, tenant_id: str | None, with_content: bool, voice: Voice
) -> None:
    """What would come back, and the taint that is to be named. Raises: NotFound."""
    require_fleet(settings)
    key = ArtifactKey(tenant_id or DEFAULT_TENANT, artifact_id)
    async with open_ledger(settings) as ledger:
        found = await ledger.withdrawn(key, with_content=with_content)
    told = {
        "artifact_id": key.artifact_id,
        "tenant_id": key.tenant_id,
        "tainted_at": rfc3339(found.tainted_at),
        "version": rfc3339(found.version),
        "title": found.title,
        "size_chars": found.size_chars,
        "taints": found.taints,
    }
    voice.result(told if found.content is None else {**told, "content": found.content})
    voice.table(key.artifact_id, ("what", "value"), [(name, str(value)) for name, value in told.items()])
    if found.content is not None:
        voice.say(found.content)
    if found.taints > 1:
        voice.say(f"{found.taints} taints took it away, and all are taken back together: rag_audit has who, and why")
    together = f" --taints {found.taints}" if found.taints != 1 else ""
    voice.say(f"To take that back, add: --tainted-at {told['tainted_at']}{together} --reason TEXT")


async def take_back(
    settings: Settings,
    artifact_id: str,
    *,
    tenant_id: str | None,
    tainted_at: str,
    taints: int,
    reason: str,
    voice: Voice,
) -> None:
    """Raises: NotFound; Refused: see `domain.taint.Untaint`; Unavailable: repeat it."""
    require_fleet(settings)
    named = parse_time(tainted_at)
    key = ArtifactKey(tenant_id or DEFAULT_TENANT, artifact_id)
    async with open_ledger(settings) as ledger, open_bus(settings, name="untaint", patient=False) as bus:
        event = await untaint(
            key, tainted_at=named, taints=taints, reason=reason, actor=actor(), withdrawals=ledger, bus=bus
        )
    version = rfc3339(event.time.claimed or 0)
    voice.result({"artifact_id": key.artifact_id, "tenant_id": key.tenant_id, "version": version})
    voice.say(f"{key.artifact_id} is on its way to the writer, as the version of {version}")
