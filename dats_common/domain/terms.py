"""The words of a text that carry its meaning, as spec 2 counts coverage."""

from __future__ import annotations

import re

LEAST_TERM_CHARS = 3  # Source: spec 2, `extract_key_terms`.

_TERM = re.compile(r"\b[a-z0-9]+\b")

# Source: spec 2, `STOPWORDS`; not the sparse encoder's list, whose change would change stored vectors.
_STOPWORDS = """
the a an is are was were be been being have has had do does did will would could should may might must shall can need
dare to of in for on with at by from as into through during before after above below between under again further then
once here there when where why how all each few more most other some such no nor not only own same so than too very
just and but if or because until while this that these those i me my myself we our ours you your yours he him his she
her hers it its they them
"""
STOPWORDS = frozenset(_STOPWORDS.split())


def key_terms(text: str) -> set[str]:
    """Lower-case words of ASCII letters and digits, of three characters or more, without stop words.

    Source: spec 2, `extract_key_terms`. A word with a sign or letter beyond ASCII in it (`get_user`, `naïve`) is no
    term, or several.
    """
    return {word for word in _TERM.findall(text.lower()) if len(word) >= LEAST_TERM_CHARS and word not in STOPWORDS}
