"""A peer of the benchmark that holds its documents in a list, as a real child process; with any of these habits:

`copies`: keeps what it has a second time. `unfiltered`: heeds no filter. `late`: still finds what was deleted in the
next query. `dies`: ends at the first query. `refuses`: raises at the first query. `waits`: reads documents only until
the first deletion comes, so that it never returns unless both can be under way at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from peer import Document, Peer, serve


class InMemoryPeer(Peer):
    def __init__(self, habits: Sequence[str]) -> None:
        self.habits = habits
        self.documents: list[Document] = []
        self.leaving: list[Document] = []
        self.deleted = threading.Event()

    def start(self, folder: Path) -> list[int]:
        print("this line is no answer")
        return [os.getpid()]

    def ingest(self, documents: Sequence[Document]) -> None:
        if "waits" in self.habits:
            self.deleted.wait()
        known = {each["id"] for each in self.documents}
        self.documents += [each for each in documents if "copies" in self.habits or each["id"] not in known]

    def query(self, text: str, where: Mapping[str, str], limit: int) -> list[str]:
        if "dies" in self.habits:
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        if "refuses" in self.habits:
            raise ValueError("no such index")
        where = {} if "unfiltered" in self.habits else where
        found = [*self.documents, *self.leaving]
        self.leaving = []
        kept = [each for each in found if all(each[name] == value for name, value in where.items())]
        words = set(text.split())
        return [each["id"] for each in sorted(kept, key=lambda each: -len(words & set(each["text"].split())))][:limit]

    def delete(self, document_id: str) -> None:
        if "late" in self.habits:
            self.leaving = [each for each in self.documents if each["id"] == document_id]
        self.documents = [each for each in self.documents if each["id"] != document_id]
        self.deleted.set()


if __name__ == "__main__":
    serve(InMemoryPeer(sys.argv[1:]))
