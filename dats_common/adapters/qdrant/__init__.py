"""The index in Qdrant, whether a cluster answers or the embedded engine does.

`index` is the port's adapter, `search` the queries of one search and their answers, `filters` the bounds of every one,
`points` what is stored, `collection` how a collection is made, and `rim` where the client's errors become ours.
"""

from dats_common.adapters.qdrant.collection import Layout
from dats_common.adapters.qdrant.index import QdrantIndex, open_qdrant

__all__ = ["Layout", "QdrantIndex", "open_qdrant"]
