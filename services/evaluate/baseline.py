"""What a ranking is held against: figures of an earlier run on the same data and the same questions. Pure but for
reading and writing the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dats_common.errors import ConfigurationError

PACKAGED = Path(__file__).with_name("baseline.json")

COMPARED = ("ndcg_at_10", "recall_at_5", "mrr_at_10")

TOLERANCE = 0.005
"""A figure may lie so far below the baseline's. The same code ranks the same on the same machine; another processor's
arithmetic changes the last digits of a similarity, and what nearly ties changes places: about what one question of 250
weighs. What a release may lose on purpose is not in it: then the baseline is renewed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of a run with a baseline.

    Attributes:
        compared: sets and modes that were held against it, as `set mode`.
        drops: figures that lie more than the tolerance below it, in a sentence each.
        not_compared: sets that could not be, and why, in a sentence each.
    """

    compared: tuple[str, ...]
    drops: tuple[str, ...]
    not_compared: tuple[str, ...]


def compare(measured: Mapping[str, Any], baseline: Mapping[str, Any]) -> Comparison:
    """Both by set, as `baseline_of` has it: figures of other data or other questions are never compared."""
    compared, drops, refused = [], [], []
    for name, ours in measured.items():
        theirs = baseline.get(name)
        if problem := _why_not(ours, theirs):
            refused.append(f"{name}: {problem}")
            continue
        for mode, figures in ours["modes"].items():
            before = theirs["modes"].get(mode) if theirs else None
            if before is None:
                refused.append(f"{name}: the baseline has no mode {mode}")
                continue
            compared.append(f"{name} {mode}")
            drops += [
                f"{name} {mode}: {figure} is {figures[figure]:.4f}, the baseline has {before[figure]:.4f}"
                for figure in COMPARED
                if figures[figure] < before[figure] - TOLERANCE
            ]
    return Comparison(tuple(compared), tuple(drops), tuple(refused))


def _why_not(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> str:
    if theirs is None:
        return "the baseline does not have it"
    if ours["fingerprint"] != theirs["fingerprint"]:
        return (
            f"the baseline is of other data ({theirs['fingerprint']}, this is {ours['fingerprint']}), "
            "such as another half of the set"
        )
    if ours["questions"] != theirs["questions"]:
        return f"the baseline asked {theirs['questions']} questions, this run {ours['questions']}"
    return ""


def baseline_of(retrieval: Mapping[str, Any]) -> dict[str, Any]:
    """What of a report is compared, by set; modes that were not asked to the end are left out."""
    found = {}
    for name, each in retrieval.items():
        modes = {
            mode: {figure: figures[figure] for figure in COMPARED}
            for mode, figures in each["modes"].items()
            if figures["complete"]
        }
        if modes:
            found[name] = {"fingerprint": each["fingerprint"], "questions": each["questions"]["judged"], "modes": modes}
    return found


def read_baseline(file: Path) -> dict[str, Any]:
    """By set. Raises: ConfigurationError: it cannot be read, or is no baseline."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        for each in found.values():
            _ = (
                each["fingerprint"],
                each["questions"],
                [[mode[name] for name in COMPARED] for mode in each["modes"].values()],
            )
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{file} is no baseline: {type(error).__name__}: {error}") from error
    return dict(found)


def write_baseline(file: Path, measured: Mapping[str, Any]) -> None:
    """What was measured replaces what the file has of the same sets; its other sets stay.

    Raises: ConfigurationError: it is something else, or cannot be written.
    """
    kept = read_baseline(file) if file.exists() else {}
    try:
        file.write_text(json.dumps({**kept, **measured}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
