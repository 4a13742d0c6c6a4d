"""Reading the settings once: defaults, then the YAML file, then the environment, which wins."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dats_common.errors import ConfigurationError
from dats_common.settings.catalog import CONFIG_VARIABLE, Setting, catalog, value_of
from dats_common.settings.sections import Settings

_OWN_PREFIXES = ("DATS_", "RAG_")
_TEST_PREFIX = "DATS_TEST_"
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent

DEFAULT_FILES = (_PACKAGE_ROOT / "config" / "rag-service.yaml", _PACKAGE_ROOT / "services" / "rag-service.yaml")
"""In a checkout, and where the wheel puts it."""


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of this process.

    Args:
        path: the YAML file; None: DATS_CONFIG, else the file that comes with the service.
        environ: an empty variable counts as not set; a secret's variable with _FILE behind it names a file that holds
            the secret.

    Raises: ConfigurationError: names the misspelt or wrong setting, the nearest valid name and where it was found.
    """
    known = catalog()
    _check_variables(environ, known)
    file = _file(path, environ)
    values = _read_yaml(file) if file else {}
    _check_keys(values, Settings, (), file)
    origins = dict.fromkeys(_names(values, ()), f"file {file}")
    for setting in known:
        for name, text in _given(setting, environ):
            _put(values, setting.path, text)
            origins[setting.name] = f"env {name}"
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, origins)) from None
    settings._origins.update(_changed(settings, origins, known))
    return settings


def _check_variables(environ: Mapping[str, str], known: Iterable[Setting]) -> None:
    names = {CONFIG_VARIABLE, *(name for setting in known for name in (setting.env, setting.file_env) if name)}
    for name in sorted(environ):
        if name.startswith(_OWN_PREFIXES) and not name.startswith(_TEST_PREFIX) and name not in names:
            raise ConfigurationError(f"unknown variable {name} in the environment{_nearest(name, names)}")


def _given(setting: Setting, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variable that sets it and its text, if one does."""
    text = environ.get(setting.env, "").strip() if setting.env else ""
    file = environ.get(setting.file_env, "").strip() if setting.file_env else ""
    if text and file:
        raise ConfigurationError(f"{setting.env} and {setting.file_env} are both set; set one of them")
    if text and setting.env:
        yield setting.env, text
    if file and setting.file_env:
        yield setting.file_env, _read_secret(setting.file_env, Path(file))


def _read_secret(name: str, file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name} names {file}, which cannot be read: {type(error).__name__}") from error
    if not secret:
        # An empty value would mean the embedded engine, or no password: never what naming a file meant.
        raise ConfigurationError(f"{name} names {file}, which is empty")
    return secret


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        return next((file for file in DEFAULT_FILES if file.is_file()), None)
    if not named.is_file():
        raise ConfigurationError(f"there is no configuration file {named}; set {CONFIG_VARIABLE} to one, or unset it")
    return named


def _read_yaml(file: Path) -> dict[str, Any]:
    # Imported here: clients import settings' neighbours, and only a service needs YAML.
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {type(error).__name__}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{file} is not YAML{where}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: keys with values are needed, such as `query:`")
    return values


def _check_keys(values: Mapping[Any, Any], section: type[BaseModel], above: tuple[str, ...], file: Path | None) -> None:
    for key, value in list(values.items()):
        name = ".".join((*above, str(key)))
        if key not in section.model_fields:
            valid = [".".join((*above, field)) for field in section.model_fields]
            raise ConfigurationError(f"{file}: unknown setting {name}{_nearest(name, valid)}")
        kind = section.model_fields[key].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if not isinstance(value, dict):
                raise ConfigurationError(
                    f"{file}: {name} holds settings, such as {name}.{next(iter(kind.model_fields))}"
                )
            _check_keys(value, kind, (*above, key), file)


def _nearest(name: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _names(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _names(value, (*above, key))
        else:
            yield ".".join((*above, key))


def _put(values: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = text


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    found = []
    for each in error.errors(include_input=False, include_url=False):
        name = ".".join(map(str, each["loc"]))
        origin = f" ({origins[name]})" if name in origins else ""
        found.append(f"{name}{origin}: {each['msg'].removeprefix('Value error, ')}")
    return "; ".join(found)


def _changed(settings: Settings, origins: Mapping[str, str], known: Iterable[Setting]) -> dict[str, str]:
    # The file that comes with the service repeats the defaults: only what differs is worth naming.
    defaults = Settings()
    return {
        each.name: origins[each.name]
        for each in known
        if each.name in origins
        and (origins[each.name].startswith("env ") or value_of(settings, each.path) != value_of(defaults, each.path))
    }
