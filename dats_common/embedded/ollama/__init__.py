"""Ollama's HTTP API over llama.cpp, for one machine: any GGUF file, no Ollama, nothing fetched from a hub.

`serve` opens it, `app` has its routes, `models` knows whose turn it is, `engine` calls llama.cpp in a child process
(`runner`), `protocol` translates, `gguf` reads what a file says of itself. `python -m dats_common.embedded.ollama` is a
whole process. Outgrown it? Name a real Ollama's URL: the client's code stays the same.
"""

from dats_common.embedded.ollama.serve import Facade, open_facade

__all__ = ["Facade", "open_facade"]
