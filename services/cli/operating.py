"""Commands for those who keep a fleet well: dead letters, quarantine, sweep, rebuild, verification."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from dats_common.contracts.events import rfc3339
from dats_common.errors import InvalidInput, Refused
from services.cli.console import Voice
from services.cli.options import (
    DEFAULT_URL,
    EXIT_INTERRUPTED,
    EXIT_NO,
    Config,
    Data,
    Json,
    Tenant,
    run_until_signal,
    settings_for,
)

dlq_app = typer.Typer(no_args_is_help=True, help="Dead letters: look at them, give them another try, drop them.")
quarantine_app = typer.Typer(no_args_is_help=True, help="Versions that could not be ordered: look, and readmit.")

DEFAULT_METRICS_PORT = 9464

Ids = Annotated[list[str] | None, typer.Argument(help="As `dlq list` shows them.", metavar="[ID]...")]
All = Annotated[bool, typer.Option("--all", help="All that are there.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]
Body = Annotated[bool, typer.Option("--body", help="The content too; it may be sensitive.")]


@dlq_app.command("list")
def list_dead_letters(limit: Limit = 100, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """The oldest dead letters; they stay where they are."""
    from services.cli.dead_letters import show_list

    settings = settings_for(config=config, data=data)
    asyncio.run(show_list(settings, limit=limit, voice=Voice(as_json=as_json)))


@dlq_app.command("show")
def show_dead_letter(
    letter_id: Annotated[str, typer.Argument(help="As `dlq list` shows it.", metavar="ID")],
    body: Body = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """One dead letter: why, where from, how often, since when; exit 1 if there is none of this id."""
    from services.cli.dead_letters import show_one

    settings = settings_for(config=config, data=data)
    found = asyncio.run(show_one(settings, letter_id, with_body=body, voice=Voice(as_json=as_json)))
    raise typer.Exit(0 if found else EXIT_NO)


@dlq_app.command("replay")
def replay_dead_letters(
    ids: Ids = None, everything: All = False, config: Config = None, data: Data = None, as_json: Json = False
) -> None:
    """Another try in the queue they came from, attempts counted anew; exit 1 if some were not moved."""
    from services.cli.dead_letters import replay

    wanted = _wanted(ids, everything)
    settings = settings_for(config=config, data=data)
    well = asyncio.run(replay(settings, wanted, voice=Voice(as_json=as_json)))
    raise typer.Exit(0 if well else EXIT_NO)


@dlq_app.command("drop")
def drop_dead_letters(
    ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good; exit 1 if some were not there."""
    from services.cli.dead_letters import drop

    wanted = _wanted(ids, everything)
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("deleting needs --yes where nobody can be asked")
        typer.confirm(
            "Delete all dead letters?" if wanted is None else f"Delete {len(wanted)} dead letters?", abort=True
        )
    settings = settings_for(config=config, data=data)
    well = asyncio.run(drop(settings, wanted, voice=Voice(as_json=as_json)))
    raise typer.Exit(0 if well else EXIT_NO)


def _wanted(ids: list[str] | None, everything: bool) -> list[str] | None:
    """None: all. Raises: BadParameter: both or neither were asked for."""
    if bool(ids) == everything:
        raise typer.BadParameter("name dead letters, or give --all")
    return ids or None


@quarantine_app.command("list")
def list_quarantine(
    limit: Limit = 100,
    after: Annotated[int, typer.Option("--after", min=0, help="Entries behind this one: the next page.")] = 0,
    body: Body = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Open entries, the oldest first: which version, why, and how long it has waited."""
    from services.cli.quarantine import show_list

    settings = settings_for(config=config, data=data)
    asyncio.run(show_list(settings, limit=limit, after=after, with_content=body, voice=Voice(as_json=as_json)))


@quarantine_app.command("readmit")
def readmit_quarantined(
    entries: Annotated[list[int], typer.Argument(help="As `quarantine list` shows them.", metavar="ENTRY...")],
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Index these versions as of now; exit 1 where a taint forbids it or there is no such entry."""
    from services.cli.quarantine import readmit_all

    settings = settings_for(config=config, data=data)
    well = asyncio.run(readmit_all(settings, entries, voice=Voice(as_json=as_json)))
    raise typer.Exit(0 if well else EXIT_NO)


def untaint(
    artifact: Annotated[str, typer.Argument(help="Its id.", metavar="ID")],
    tainted_at: Annotated[
        str | None, typer.Option("--tainted-at", help="Which taint was wrong, by its time as this command shows it.")
    ] = None,
    taints: Annotated[
        int, typer.Option("--taints", min=0, help="How many are taken back together, as this command shows.")
    ] = 1,
    reason: Annotated[str | None, typer.Option("--reason", help="For the record; needed with --tainted-at.")] = None,
    body: Body = False,
    tenant: Tenant = None,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """What a taint took away; with --tainted-at, show it again. Exit 1 where that is refused."""
    from services.cli.untaint import show_withdrawn, take_back

    if (tainted_at is None) != (reason is None):
        raise typer.BadParameter("--tainted-at and --reason go together")
    voice, settings = Voice(as_json=as_json), settings_for(config=config, data=data)
    try:
        if tainted_at is None or reason is None:
            asyncio.run(show_withdrawn(settings, artifact, tenant_id=tenant, with_content=body, voice=voice))
        else:
            asyncio.run(
                take_back(
                    settings,
                    artifact,
                    tenant_id=tenant,
                    tainted_at=tainted_at,
                    taints=taints,
                    reason=reason,
                    voice=voice,
                )
            )
    except InvalidInput:
        raise  # wrong usage, not a refusal
    except Refused as refusal:
        voice.note(str(refusal))
        raise typer.Exit(EXIT_NO) from None


def backup(
    file: Annotated[Path, typer.Argument(help="Where the copy goes; it must not exist.", dir_okay=False)],
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Copy the ledger of a data directory while its fleet is at work, and check the copy. For PostgreSQL: pg_dump."""
    from services.backends import back_up_ledger
    from services.cli.maintenance import require_fleet

    voice, settings = Voice(as_json=as_json), settings_for(config=config, data=data)
    require_fleet(settings)
    size_bytes = asyncio.run(back_up_ledger(settings, file))
    voice.result({"file": str(file), "size_bytes": size_bytes})
    voice.say(f"{file}: {size_bytes} bytes, checked")


def replay_taints(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """After a restore: apply again the taints that the ledger has forgotten and the broker still knows.

    Exit 1 when it cannot be told whether these are all: then have Cascade publish its taints again.
    """
    from services.cli.maintenance import replay_forgotten_taints

    voice = Voice(as_json=as_json)
    done = asyncio.run(replay_forgotten_taints(settings_for(config=config, data=data), voice=voice))
    began = None if done.reaches_back_to is None else rfc3339(done.reaches_back_to)
    voice.result(
        {
            "replayed": done.taints,
            "known": done.known,
            "forgotten_artifacts": list(done.forgotten),
            "broker_reaches_back_to": began,
            "complete": done.is_complete,
        }
    )
    voice.say(f"{done.taints} taints replayed, {done.known} were known")
    if done.forgotten:
        voice.say(f"Have QA publish these again, with their own times: {', '.join(done.forgotten)}")
    if not done.is_complete:
        voice.say(
            f"The broker's events begin at {began or 'no event at all'}, maybe after the backup: there may have been "
            "taints in between. Have Cascade publish its taints since the backup again"
        )
        raise typer.Exit(EXIT_NO)


def sweep(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Remove what the index holds and nobody can see: one full pass, beside a working fleet."""
    from services.cli.maintenance import sweep_once

    voice = Voice(as_json=as_json)
    done = asyncio.run(sweep_once(settings_for(config=config, data=data), voice=voice))
    voice.result({"looked_at": done.looked_at, "orphaned_points": done.points, "removed_generations": done.generations})
    voice.say(
        f"{done.looked_at} points looked at; {done.points} orphaned ones of {done.generations} generations removed"
    )


def top(
    url: Annotated[list[str], typer.Option("--url", help="A replica's API; repeat it for each.")] = [DEFAULT_URL],  # noqa: B006
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, without rates.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Queues, writers, ledger and replicas as they are now, in this terminal; what does not answer is shown as AWAY."""
    from services.cli.top import watch

    settings, voice = settings_for(config=config, data=data), Voice(as_json=as_json)
    key = settings.auth.api_key.get_secret_value() or None
    urls = tuple(dict.fromkeys(each.rstrip("/") for each in url))
    run_until_signal(lambda: watch(settings, urls, api_key=key, interval_s=interval, once=once, voice=voice))


def verify(
    url: Annotated[list[str], typer.Option("--url", help="A replica's API; repeat it for each.")] = [DEFAULT_URL],  # noqa: B006
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of canaries.")] = 3,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=100, help="Queries a second of each replica.")] = 8.0,
    watch: Annotated[
        float | None, typer.Option("--watch", min=1, help="Again every so many seconds, for ever.")
    ] = None,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", min=1, max=65535, help="Where a watch serves its metrics.")
    ] = DEFAULT_METRICS_PORT,
    replicas_only: Annotated[
        bool, typer.Option("--replicas-only", help="Ask only the replicas: no ledger, index or broker is at hand.")
    ] = False,
    tenant: Tenant = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A bearer token, instead of the key in DATS_API_KEY.")
    ] = None,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write canaries, withdraw them, look for them on every replica; compare ledger and index; exit 1 if not well."""
    from services.cli.verify import Asked, verify_fleet

    voice = Voice(as_json=as_json)
    asked = Asked(
        urls=tuple(dict.fromkeys(url)),
        rounds=rounds,
        looks_per_s=rate,
        watch_s=watch,
        metrics_port=metrics_port,
        replicas_only=replicas_only,
        tenant_id=tenant,
        token=token_file.read_text(encoding="utf-8").strip() if token_file else None,
    )
    verdicts: list[bool] = []
    settings = settings_for(config=config, data=data)
    ended = run_until_signal(lambda: verify_fleet(settings, asked, verdicts=verdicts, voice=voice))
    if ended is None and watch is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(0 if all(verdicts) else EXIT_NO)


def reindex(
    recreate: Annotated[bool, typer.Option("--recreate", help="Drop the collection first (a new model).")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew instead of where the last run ended.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Rebuild the index from the ledger; a running fleet goes on serving. Interrupted, it goes on where it ended."""
    from services.cli.maintenance import rebuild

    voice = Voice(as_json=as_json)
    settings = settings_for(config=config, data=data)
    done = asyncio.run(rebuild(settings, recreate=recreate, restart=restart, voice=voice))
    voice.result(
        {"artifacts": done.artifacts, "chunks": done.chunks, "resumed_after_chunks": done.resumed_after_chunks}
    )
    if done.artifacts:
        voice.say(f"{done.chunks} chunks of {done.artifacts} artifacts")
    else:
        voice.say("Nothing is live: nothing to index")
