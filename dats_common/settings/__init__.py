"""Settings: frozen sections, read once by `load_settings`; a misspelt name stops the start with the nearest one."""

from dats_common.settings.catalog import CONFIG_VARIABLE, Described, describe
from dats_common.settings.load import load_settings
from dats_common.settings.sections import (
    Chunking,
    Embedding,
    Events,
    Fusion,
    LightRAG,
    Query,
    RabbitMQ,
    Server,
    Settings,
    Sql,
    VectorStore,
)

__all__ = [
    "CONFIG_VARIABLE",
    "Chunking",
    "Described",
    "Embedding",
    "Events",
    "Fusion",
    "LightRAG",
    "Query",
    "RabbitMQ",
    "Server",
    "Settings",
    "Sql",
    "VectorStore",
    "describe",
    "load_settings",
]
