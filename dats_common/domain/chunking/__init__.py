"""How documents become chunks: profiles choose, formats are read into outlines, the packer cuts.

`chunker` is the way in; docs/chunking.md tells of the profiles.
"""

from dats_common.domain.chunking.chunker import Chunker, FindDefinitions, no_definitions
from dats_common.domain.chunking.packing import Strategy, within_window

__all__ = ["Chunker", "FindDefinitions", "Strategy", "no_definitions", "within_window"]
