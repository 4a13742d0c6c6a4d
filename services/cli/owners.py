"""`dats-rag owners`: who answers for a tag when an answer is not good enough; straight on the ledger."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dats_common.contracts.fields import FreeText, Identifier, Label, Tag, TenantId, explain, printable
from dats_common.contracts.strict_json import parse_object
from dats_common.domain.model import DEFAULT_TENANT
from dats_common.errors import InvalidInput
from services.cli.console import Voice
from services.cli.options import EXIT_NO, Config, Data, Json, actor, settings_for

if TYPE_CHECKING:
    from dats_common.records import TagOwner, User

owners_app = typer.Typer(no_args_is_help=True, help="Owners of tags: whom questions go to that no answer is found for.")

Tenant = Annotated[str, typer.Option("--tenant", help="Whose tags and users.")]

_SHOWN_FLAWS = 5
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def _email(text: str) -> str:
    # Whether it is anybody's only a message to it can tell.
    if not _EMAIL.fullmatch(text):
        raise ValueError("an e-mail address is needed, such as ada@example.org")
    return printable(text)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class UserEntry(_Entry):
    """Somebody who can own tags."""

    user_id: Identifier
    # Source: RFC 5321, 4.5.3.1: 64 before the @, 255 behind it.
    email: Annotated[str, Field(max_length=320), AfterValidator(_email)]
    name: Label = ""


class TagEntry(_Entry):
    """A tag and who owns it; nobody: its questions go to the admin."""

    name: Tag
    owner_user_id: Identifier | None = None
    description: FreeText = ""


class OwnersFile(_Entry):
    """What a file may say. Whom and what it does not name stays as it is."""

    users: list[UserEntry] = []
    tags: list[TagEntry] = []


# ------------------------------------------------------------------------------------------------------- the commands


@owners_app.command("import")
def import_owners(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="YAML or JSON with `users` and `tags`; - reads stdin.")],
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Add or replace users and tags, all or none; those that the file does not name stay as they are."""
    from dats_common.records import TagOwner, User
    from services.backends import open_owners

    wanted = read_owners(file.read(), name=str(getattr(file, "name", "-")))
    users = [User(each.user_id, each.email, each.name) for each in wanted.users]
    tags = [TagOwner(each.name, each.owner_user_id, description=each.description) for each in wanted.tags]
    tenant_id = _tenant(tenant)

    async def put() -> None:
        async with open_owners(settings_for(config=config, data=data)) as owners:
            await owners.put(users, tags, tenant_id=tenant_id, actor=actor())

    asyncio.run(put())
    voice = Voice(as_json=as_json)
    voice.result({"tenant_id": tenant_id, "users": len(users), "tags": len(tags)})
    voice.say(f"{len(users)} users and {len(tags)} tags of tenant {tenant_id} are set")


@owners_app.command("list")
def list_owners(
    tenant: Tenant = DEFAULT_TENANT, config: Config = None, data: Data = None, as_json: Json = False
) -> None:
    """Every tag with its owner, and every user."""
    from services.backends import open_owners

    tenant_id = _tenant(tenant)

    async def read() -> tuple[list[TagOwner], list[User]]:
        async with open_owners(settings_for(config=config, data=data)) as owners:
            return await owners.list_tags(tenant_id=tenant_id), await owners.list_users(tenant_id=tenant_id)

    tags, users = asyncio.run(read())
    voice = Voice(as_json=as_json)
    shown = [
        {"name": tag.tag, "owner_user_id": tag.user_id, "email": tag.email, "description": tag.description}
        for tag in tags
    ]
    voice.result({"tenant_id": tenant_id, "tags": shown, "users": [asdict(user) for user in users]})
    columns = ("tag", "owner", "e-mail", "description")
    voice.table(
        f"{len(tags)} tags", columns, [(tag.tag, tag.user_id or "", tag.email or "", tag.description) for tag in tags]
    )
    voice.table(
        f"{len(users)} users", ("user", "e-mail", "name"), [(user.user_id, user.email, user.name) for user in users]
    )


@owners_app.command("remove-tag")
def remove_tag(
    tag: Annotated[str, typer.Argument(help="As `owners list` shows it.", metavar="TAG")],
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Questions about this tag go to the admin from now on; exit 1 if there is none."""
    from services.backends import open_owners

    tenant_id = _tenant(tenant)

    async def remove() -> bool:
        async with open_owners(settings_for(config=config, data=data)) as owners:
            return await owners.remove_tag(tag, tenant_id=tenant_id, actor=actor())

    _end(f"tag {tag}", removed=asyncio.run(remove()), voice=Voice(as_json=as_json))


@owners_app.command("remove-user")
def remove_user(
    user_id: Annotated[str, typer.Argument(help="As `owners list` shows it.", metavar="USER")],
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Questions about this user's tags go to the admin until they have another owner; exit 1 if there is none."""
    from services.backends import open_owners

    tenant_id = _tenant(tenant)

    async def remove() -> bool:
        async with open_owners(settings_for(config=config, data=data)) as owners:
            return await owners.remove_user(user_id, tenant_id=tenant_id, actor=actor())

    _end(f"user {user_id}", removed=asyncio.run(remove()), voice=Voice(as_json=as_json))


def _end(what: str, *, removed: bool, voice: Voice) -> None:
    voice.result({"removed": removed})
    voice.say(f"{what} is removed" if removed else f"there is no {what}")
    raise typer.Exit(0 if removed else EXIT_NO)


def _tenant(tenant: str) -> str:
    try:
        return TypeAdapter(TenantId).validate_python(tenant)
    except ValidationError as error:
        raise InvalidInput(f"--tenant: {explain(error.errors(include_input=False))[0][1]}") from None


# ----------------------------------------------------------------------------------------------------------- the file


def read_owners(raw: bytes, *, name: str) -> OwnersFile:
    """The users and tags in a file: JSON if it begins with a brace, else YAML.

    Raises: InvalidInput: names each flaw's field, in YAML its line too.
    """
    values, tree = _parsed(raw, name=name)
    if not isinstance(values, dict) or not values:
        raise InvalidInput(f"{name}: lists are needed under `users:`, `tags:` or both")
    flaws: list[tuple[Sequence[int | str], str]] = []
    found = OwnersFile()
    try:
        found = OwnersFile.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_input=False)
        explained = explain(errors)
        flaws = [(each["loc"], f"{field}: {why}") for each, (field, why) in zip(errors, explained, strict=True)]
    flaws += _repeated("users", "user_id", [user.user_id for user in found.users])
    flaws += _repeated("tags", "name", [tag.name for tag in found.tags])
    if flaws:
        told = [f"{_line(tree, where)}{flaw}" for where, flaw in flaws[:_SHOWN_FLAWS]]
        if len(flaws) > _SHOWN_FLAWS:
            told.append(f"and {len(flaws) - _SHOWN_FLAWS} more")
        raise InvalidInput(f"{name}: {'; '.join(told)}")
    return found


def _parsed(raw: bytes, *, name: str) -> tuple[Any, Any]:
    """The values, and for YAML the tree of its nodes, which know their lines."""
    import yaml

    if raw.lstrip().startswith(b"{"):
        try:
            return parse_object(raw), None
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("body", name, 1)) from None
    try:
        loader = yaml.SafeLoader(raw)
        tree = loader.get_single_node()
        values = {} if tree is None else loader.construct_document(tree)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a day that no month has
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InvalidInput(f"{name}: not YAML{where}: {getattr(error, 'problem', None) or error}") from None
    for key, line in _repeated_keys(tree):
        raise InvalidInput(f"{name}: line {line}: {key}: stands twice in one place")
    return values, tree


def _repeated_keys(tree: Any) -> Iterator[tuple[str, int]]:
    """Of two equal keys YAML keeps the last: half of the tags would be dropped without a word."""
    lists = [value for _, value in tree.value] if tree is not None and tree.id == "mapping" else []
    entries = [entry for each in lists if each.id == "sequence" for entry in each.value]
    for node in [tree, *entries]:
        seen: set[str] = set()
        for key, _ in node.value if node is not None and node.id == "mapping" else []:
            if str(key.value) in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(str(key.value))


def _repeated(section: str, field: str, names: Sequence[str]) -> Iterator[tuple[Sequence[int | str], str]]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (section, index, field), f"{section}[{index}].{field}: {name} stands twice"


def _line(tree: Any, where: Sequence[int | str]) -> str:
    """Where a field stands, or would: the line of the innermost part of its path that is there."""
    if tree is None:
        return ""
    node = tree
    for step in where:
        if node.id == "sequence" and isinstance(step, int):
            node = node.value[step]
        elif node.id == "mapping":
            node = next((value for key, value in node.value if key.value == step), node)
    return f"line {node.start_mark.line + 1}: "
