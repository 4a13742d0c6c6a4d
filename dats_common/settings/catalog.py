"""The list of all settings, read off the sections: for the environment, for `doctor` and for the reference page."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from dats_common.settings.sections import Env, Reserved, Settings

CONFIG_VARIABLE = "DATS_CONFIG"
MASK = "***"

_CREDENTIALS = re.compile(r"^(?P<before>[a-z][a-z0-9+.\-]*://[^/?#@:]*):.*@", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        path: keys from the top of the YAML file.
        env: the variable that overrides it, if any.
        reserved: what will use it, or None when it is used now.
    """

    path: tuple[str, ...]
    field: FieldInfo
    env: str | None
    reserved: str | None

    @property
    def name(self) -> str:
        """Dotted, as messages and the reference page show it."""
        return ".".join(self.path)

    @property
    def file_env(self) -> str | None:
        """The variable that names a file with the value: for secrets, which orchestrators hand over as files."""
        return f"{self.env}_FILE" if self.env and self.field.annotation is SecretStr else None


@dataclass(frozen=True, slots=True)
class Described:
    """A setting as it resolved: `origin` is `default`, `env NAME` or `file PATH`; secrets are masked."""

    setting: str
    value: str
    origin: str


def catalog() -> list[Setting]:
    """All settings, in the order of the sections."""
    return list(_walk(Settings, ()))


def describe(settings: Settings) -> list[Described]:
    """What each setting resolved to and from where; safe to print."""
    return [
        Described(each.name, shown(value_of(settings, each.path)), settings._origins.get(each.name, "default"))
        for each in catalog()
    ]


def value_of(settings: BaseModel, path: tuple[str, ...]) -> Any:
    """The value at `path`."""
    value: Any = settings
    for key in path:
        value = getattr(value, key)
    return value


def shown(value: Any) -> str:
    """A value for people: of a URL only the password and the query are hidden, of another secret everything."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return _masked_url(secret) if "://" in secret else MASK if secret else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(each)}" if isinstance(each, bool) else name for name, each in value.items())
    return _masked_url(value) if isinstance(value, str) and "://" in value else str(value)


def type_name(field: FieldInfo) -> str:
    """The field's type for the reference page."""
    kind = field.annotation
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is dict:
        return "names, each true or false" if typing.get_args(kind)[1] is bool else "names with settings"
    names: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return {**names, SecretStr: "secret", Path: "path"}[kind]


def _masked_url(url: str) -> str:
    # The password goes first, and up to the last @: it may hold a ? or an @ of its own.
    address, mark, _ = _CREDENTIALS.sub(rf"\g<before>:{MASK}@", url).partition("?")
    return f"{address}?{MASK}" if mark else address


def _walk(section: type[BaseModel], above: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        path = (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, path)
            continue
        env = next((mark.name for mark in field.metadata if isinstance(mark, Env)), None)
        reserved = next((mark.by for mark in field.metadata if isinstance(mark, Reserved)), None)
        yield Setting(path, field, env, reserved)
