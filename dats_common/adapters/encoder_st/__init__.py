"""Any model that sentence-transformers can load, on the CPU or on one named GPU."""

from dats_common.adapters.encoder_st.encoder import (
    DEFAULT_MODEL,
    SentenceTransformersEncoder,
    open_sentence_transformers_encoder,
)

__all__ = ["DEFAULT_MODEL", "SentenceTransformersEncoder", "open_sentence_transformers_encoder"]
