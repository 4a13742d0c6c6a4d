"""An embedding model that another server runs: Ollama's `/api/embed`, or a gateway that speaks OpenAI's embeddings.

`wire` is what is sent and what answers and refusals mean, `client` is the connection, `estimate` stands in for the
tokenizer that the server keeps to itself, and `encoder` puts them together.
"""

from dats_common.adapters.encoder_http.encoder import HttpEncoder, Remote, open_gateway_encoder, open_ollama_encoder

__all__ = ["HttpEncoder", "Remote", "open_gateway_encoder", "open_ollama_encoder"]
