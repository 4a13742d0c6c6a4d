"""Ollama's model names: compared whole, and told from those whose prompts leave the house. Pure."""

from __future__ import annotations

from typing import Any

from dats_common.errors import LLMConnectionError, ModelUnavailableError

_CLOUD_ENDINGS = ("-cloud", ":cloud")


def full_name(model: str) -> str:
    """The name as Ollama means it: in small letters, with the tag `latest` where it has none.

    A colon before the last slash belongs to a registry's port and is no tag.
    """
    name = model.lower()
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def refuse_cloud(model: str) -> None:
    """Raises: ModelUnavailableError: Ollama would hand the prompt on to its cloud."""
    if full_name(model).removesuffix(":latest").endswith(_CLOUD_ENDINGS):
        raise _leaves_the_house(model)


def listed_digest(listing: dict[str, Any], model: str) -> str:
    """Find a model in the answer of `/api/tags`; returns what tells its versions apart, empty where nothing does.

    Raises: ModelUnavailableError: it is not there, or only as a name for a model elsewhere; LLMConnectionError: the
        answer is no list of models.
    """
    entries = listing.get("models")
    # An Ollama without models has said `null` here.
    if not isinstance(entries or [], list):
        raise LLMConnectionError("the model server's list of models cannot be read")
    for entry in entries or []:
        if isinstance(entry, dict) and full_name(model) == full_name(str(entry.get("name") or entry.get("model"))):
            if is_remote(entry):
                raise _leaves_the_house(model)
            return str(entry.get("digest") or "")
    raise missing(model)


def is_remote(answer: dict[str, Any]) -> bool:
    """Whether Ollama says of a model, or of an answer, that it is another server's."""
    return bool(answer.get("remote_host") or answer.get("remote_model"))


def missing(model: str) -> ModelUnavailableError:
    """The model is not there."""
    return ModelUnavailableError(f"the model server has no model {model!r}; run: ollama pull {model}")


def _leaves_the_house(model: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"model {model!r} runs on another server, so the prompt would leave the house; choose a model that runs here"
    )
