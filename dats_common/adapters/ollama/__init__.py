"""Answers by a model that runs in Ollama, over plain HTTP.

`names` tells models apart, `wire` is what is sent and what lines and refusals mean, `thinking` and `rating` read what a
model wrote, `client` is the connection, `slots` bounds the haste, `vocabulary` and `own_tokens` count as the models do,
and `generator` puts them together.
"""

from dats_common.adapters.ollama.generator import OllamaGenerator, Timeouts, open_ollama
from dats_common.adapters.ollama.own_tokens import OwnTokenCounter

__all__ = ["OllamaGenerator", "OwnTokenCounter", "Timeouts", "open_ollama"]
