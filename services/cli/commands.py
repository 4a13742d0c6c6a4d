"""The commands. Each one reads the settings once and hands sections down."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated

import typer

from dats_common.clients.errors import RAGError, RAGInvalid, RAGUnavailable
from dats_common.contracts.api import SearchMode, SourceLocation
from dats_common.domain.location import SECTION_GAP
from dats_common.domain.model import DEFAULT_TENANT
from dats_common.errors import ConfigurationError, DatsError, Refused
from services.cli.console import Voice
from services.cli.operating import backup, dlq_app, quarantine_app, reindex, replay_taints, sweep, top, untaint, verify
from services.cli.options import (
    DEFAULT_URL,
    EXIT_CONFIGURATION,
    EXIT_NO,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    Config,
    Data,
    Json,
    PortOption,
    Tenant,
    Url,
    own_key,
    run_until_signal,
    settings_for,
)
from services.cli.owners import owners_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

keys_app = typer.Typer(no_args_is_help=True, help="API keys, straight on the ledger.")
app.add_typer(keys_app, name="keys")
app.add_typer(dlq_app, name="dlq")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(owners_app, name="owners")
app.command()(untaint)
app.command()(backup)
app.command()(replay_taints)
app.command()(sweep)
app.command()(reindex)
app.command()(verify)
app.command()(top)


class EvalPart(StrEnum):
    """What `dats-rag eval` measures."""

    RETRIEVAL = "retrieval"
    ANSWERS = "answers"
    GROUNDING = "grounding"


def run_app() -> None:
    """Run the command line; errors end in one clear sentence and an exit status, never in a stack trace."""
    try:
        app()
    except ConfigurationError as error:
        _fail(str(error), EXIT_CONFIGURATION)
    except Refused as error:
        _fail(str(error), EXIT_USAGE)
    except DatsError as error:
        _fail(str(error), EXIT_UNAVAILABLE)
    except RAGUnavailable as error:
        _fail(f"{error}; is the service running? Start one with `dats-rag up`, or name it with --url", EXIT_UNAVAILABLE)
    except RAGInvalid as error:
        _fail(str(error), EXIT_USAGE)
    except RAGError as error:
        _fail(str(error), EXIT_NO)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(text: str, status: int) -> None:
    sys.stderr.write(f"dats-rag: {text}\n")
    sys.exit(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dats-rag {distribution_version('dats-rag')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """The memory between DATS agent workers: approved outputs become searchable, tainted ones vanish at once."""


@app.command()
def up(port: PortOption = None, data: Data = None, config: Config = None) -> None:
    """The whole fleet on this machine: embedded broker, ledger and Qdrant engine unless URLs are set."""
    from dats_common.telemetry.logs import configure_logs
    from services.local import open_fleet

    settings = settings_for(config=config, data=data, port=port)
    voice = Voice()

    async def stay_up() -> None:
        configure_logs(service="up", level=settings.telemetry.log_level)
        async with open_fleet(settings, config_file=config) as fleet:
            voice.say(f"DATS RAG is up: {fleet.base_url}  (docs: {fleet.base_url.removesuffix('/api/v1')}/docs)")
            voice.say(f"Metrics: {fleet.base_url}/metrics and, of the writer, {fleet.writer_metrics_url}")
            voice.say(f"Data in {settings.data_dir.resolve()}. Ctrl-C stops it.")
            await fleet.run()

    run_until_signal(stay_up)


@app.command()
def writer(config: Config = None, data: Data = None) -> None:
    """The embedding writer: active, or a standby that waits."""
    from services.writer.__main__ import run

    raise typer.Exit(run(settings_for(config=config, data=data)))


@app.command()
def query(port: PortOption = None, config: Config = None, data: Data = None) -> None:
    """A query replica: search, embed and invalidate over HTTP."""
    from services.query.__main__ import run

    raise typer.Exit(run(settings_for(config=config, data=data, port=port)))


@app.command()
def engine(
    data: Data = None,
    config: Config = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="gRPC port.")] = 6334,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """The embedded Qdrant engine on its own, for several processes of one machine."""
    from dats_common.embedded.qdrant_edge import run
    from services.backends import engine_dir

    run(engine_dir(settings_for(config=config, data=data)), host, port)


@app.command()
def publish(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="JSON lines, one event each; - reads stdin.")],
    event_type: Annotated[str, typer.Option("--type", help="For events without a `type`.")] = "task.validated",
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Publish events from JSON lines to the broker, as QA and Cascade do."""
    from services.cli.publish import publish_lines

    voice = Voice(as_json=as_json)
    settings = settings_for(config=config, data=data)
    outcome = asyncio.run(publish_lines(settings, file, event_type=event_type, voice=voice))
    voice.result({"published": outcome.published, "refused": outcome.refused})
    voice.say(f"{outcome.published} published, {len(outcome.refused)} refused")
    raise typer.Exit(EXIT_NO if outcome.refused else 0)


@app.command()
def search(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    mode: Annotated[str, typer.Option("--mode", help="vector, keyword or hybrid.")] = "hybrid",
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    tenant: Tenant = None,
    domain: Annotated[str | None, typer.Option("--domain", help="Only this domain.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Token budget of the context.")] = 2000,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Search a running service; exit 1 when nothing relevant was found."""
    from dats_common.clients.rag import RAGClientSync

    voice = Voice(as_json=as_json)
    with RAGClientSync(url, api_key=own_key()) as client:
        found = client.query(
            question, project_id=project, domain=domain, max_tokens=max_tokens, search_mode=mode, tenant_id=tenant
        )
    voice.result(found.model_dump(mode="json"))
    voice.table(
        f"{len(found.sources)} sources, {found.tokens_used} tokens, {found.metadata.get('latency_ms', 0):.0f} ms",
        ("similarity", "artifact", "where", "snippet"),
        [
            (
                f"{source.relevance_score:.3f}",
                source.artifact_id,
                place(source.location),
                " ".join(source.snippet.split())[:120],
            )
            for source in found.sources
        ],
    )
    if not found.sources:
        voice.say(f"Nothing relevant: {found.metadata.get('reason', '')}")
        raise typer.Exit(EXIT_NO)


def place(location: SourceLocation | None) -> str:
    """Where a person finds it, in a line: what to open, the page or the lines, and the headings above it."""
    if location is None:
        return ""
    found = [location.uri or ""]
    if "#" not in found[0]:  # else the address leads there by itself
        if location.page is not None:
            found.append(f"page {location.page}")
        elif location.line_start is not None:
            found.append(_lines(location.line_start, location.line_end or location.line_start))
    return ", ".join(filter(None, (*found, SECTION_GAP.join(location.heading_path))))


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What is to be answered.")],
    model: Annotated[str | None, typer.Option("--model", help="One of the allowlist.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Only sentences that their sources support.")] = False,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Have a running service answer with citations; exit 1 when it names somebody to ask instead."""
    from dats_common.clients.rag import RAGClientSync

    voice = Voice(as_json=as_json)
    with RAGClientSync(url, api_key=own_key()) as client:
        found = client.answer(question, model=model, strict=strict, tenant_id=tenant)
    voice.result(found.model_dump(mode="json"))
    voice.say(found.answer)
    voice.table(
        f"{found.action}, confidence {found.confidence.overall}%, by {found.model_used} ({found.id})",
        ("similarity", "source", "document", "where"),
        [
            (f"{each.relevance_score:.3f}", each.source_id, each.document_name, place(each.location))
            for each in found.citations
        ],
    )
    if found.route_to is not None:
        voice.say(f"Ask {found.route_to.owner_email}: {found.route_to.reason}")
        raise typer.Exit(EXIT_NO)


@app.command(name="eval")
def evaluate(
    folder: Annotated[Path, typer.Argument(help="A folder with evaluation sets.", exists=True, file_okay=False)],
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("evaluation"),
    sets: Annotated[list[str] | None, typer.Option("--set", help="Only this set; may be repeated.")] = None,
    mode: Annotated[
        list[SearchMode] | None, typer.Option("--mode", help="Only this search mode; may be repeated.")
    ] = None,
    part: Annotated[list[EvalPart] | None, typer.Option("--part", help="Only this; may be repeated.")] = None,
    questions: Annotated[
        int | None,
        typer.Option("--questions", min=1, help="Of each kind in a set, evenly spread; else all, and 200 for answers."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", help="Compare with this file, not with the packaged one.", dir_okay=False, exists=True
        ),
    ] = None,
    write_baseline: Annotated[
        Path | None, typer.Option("--write-baseline", help="Keep the ranking's figures there, as a baseline.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML settings of the fleets.", dir_okay=False, exists=True)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure retrieval, answers and grounding on evaluation sets, each with a fleet of its own; exit 1 on a drop."""
    from services.cli.evaluating import PARTS, Plan
    from services.cli.evaluating import evaluate as run_evaluation
    from services.cli.evaluating_search import MODES

    plan = Plan(
        folder,
        out,
        sets=sets or (),
        modes=[each for each in MODES if not mode or each in {asked.value for asked in mode}],
        parts=[each for each in PARTS if not part or each in {asked.value for asked in part}],
        most=questions,
        baseline=baseline,
        renew=write_baseline,
        config=config,
    )
    raise typer.Exit(run_evaluation(plan, voice=Voice(as_json=as_json)))


@app.command()
def taint(
    ids: Annotated[list[str], typer.Argument(help="Artifact ids.", metavar="ID...")],
    reason: Annotated[str | None, typer.Option("--reason", help="For the record.")] = None,
    cascade: Annotated[str | None, typer.Option("--cascade", help="Cascade id.")] = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Make artifacts vanish from every answer, at once."""
    from dats_common.clients.rag import RAGClientSync

    voice = Voice(as_json=as_json)
    with RAGClientSync(url, api_key=own_key()) as client:
        done = client.batch_invalidate(ids, reason=reason, cascade_id=cascade, tenant_id=tenant)
    voice.result(done.model_dump(mode="json"))
    voice.say(f"{done.invalidated} invalidated, {done.chunks_removed} chunks gone from every answer")


@app.command()
def migrate(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Bring the ledger's schema and PostgreSQL's roles up to date, as the owner [DATS_SQL_MIGRATION_URL]."""
    from services.backends import migrate_ledger

    voice = Voice(as_json=as_json)
    version = asyncio.run(migrate_ledger(settings_for(config=config, data=data)))
    voice.result({"version": version})
    voice.say(f"The ledger's schema is at version {version}.")


@app.command()
def doctor(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """What is set and from where, what is reachable, what is not, and what to do."""
    from services.cli.doctor import examine

    voice = Voice(as_json=as_json)
    well = asyncio.run(examine(settings_for(config=config, data=data), voice=voice))
    raise typer.Exit(0 if well else EXIT_NO)


@app.command()
def demo(
    everything: Annotated[bool, typer.Option("--all", help="Index all modules, not about 1,500 chunks.")] = False,
    as_json: Json = False,
) -> None:
    """Index the Python standard library, search it, taint an artifact, see that it is gone. Ends by itself."""
    from services.cli.demo import run_demo

    voice = Voice(as_json=as_json)
    well = run_until_signal(lambda: run_demo(voice=voice, everything=everything))
    raise typer.Exit(0 if well else EXIT_NO)


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Option("--name", help="What it is for, such as the service that will hold it.")],
    role: Annotated[list[str], typer.Option("--role", help="reader, service, ingest or admin; may be repeated.")],
    tenant: Annotated[list[str], typer.Option("--tenant", help="May be repeated.")] = [DEFAULT_TENANT],  # noqa: B006
    project: Annotated[list[str], typer.Option("--project", help="Only these projects; none: all.")] = [],  # noqa: B006
    tag: Annotated[list[str], typer.Option("--tag", help="Tags that it may see; '*': all.")] = [],  # noqa: B006
    user: Annotated[str | None, typer.Option("--user", help="The user whom it stands for.")] = None,
    days: Annotated[float | None, typer.Option("--days", min=0, help="Good for so long; else until revoked.")] = None,
    per_minute: Annotated[int | None, typer.Option("--per-minute", min=1, help="Its own rate limit.")] = None,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it once; only a hash of it is kept."""
    from services.cli.keys import create, wanted_key

    wanted = wanted_key(
        name=name, roles=role, tenants=tenant, projects=project, tags=tag, user=user, per_minute=per_minute
    )
    asyncio.run(create(settings_for(config=config, data=data), wanted, days=days, voice=Voice(as_json=as_json)))


@keys_app.command("list")
def list_keys(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """All keys, revoked and expired ones too; never a secret."""
    from services.cli.keys import show

    asyncio.run(show(settings_for(config=config, data=data), voice=Voice(as_json=as_json)))


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="As `keys list` shows it.", metavar="KEY_ID")],
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """From now on the key is good nowhere."""
    from services.cli.keys import revoke

    known = asyncio.run(revoke(settings_for(config=config, data=data), key_id, voice=Voice(as_json=as_json)))
    raise typer.Exit(0 if known else EXIT_NO)
