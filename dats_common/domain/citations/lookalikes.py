"""What a character reads as, whatever it was written with."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# What readers take for one of our signs and NFKD does not fold into it. Source: Unicode's confusables.txt, in part.
_OPENING = "【〔〖〚⟦⦋⁅❲⟬⦗⦍⦏⹕⹗⸢⎡"
_CLOSING = "】〕〗〛⟧⦌⁆❳⟭⦘⦎⦐⹖⹘⸣⎤"
_LOOKALIKES: dict[str, str] = {
    **dict.fromkeys(_OPENING, "["),
    **dict.fromkeys(_CLOSING, "]"),
    **dict.fromkeys("‹〈⟨❮ᐸ˂", "<"),
    **dict.fromkeys("›〉⟩❯ᐳ˃", ">"),
    **dict.fromkeys("«《⟪≪", "<<"),
    **dict.fromkeys("»》⟫≫", ">>"),
    **{"⋘": "<<<", "⋙": ">>>"},
    **dict.fromkeys("‐‑‒–—―−⁃", "-"),
    **dict.fromkeys("∶꞉ː", ":"),
    **dict.fromkeys("ǀ∣│❘", "|"),
    **dict.fromkeys("∕⁄⧸", "/"),
    **{"、": ",", "٬": ",", "،": ",", "▁": "_"},
    **dict.fromkeys("ѕꜱ", "s"),
    **dict.fromkeys("оοօᴏ", "o"),
    **dict.fromkeys("υսᴜ", "u"),
    **dict.fromkeys("ʀᴦ", "r"),
    **dict.fromkeys("сᴄ", "c"),
    **dict.fromkeys("еᴇ", "e"),
    **dict.fromkeys("іıιɪӏ", "i"),
    **dict.fromkeys("ԁᴅ", "d"),
}
_FILLERS = frozenset("\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # Letters by category, and yet nothing is seen.


@lru_cache(maxsize=8192)
def fold(char: str) -> str:
    """What a character reads as: lower case, ASCII where it looks like that; "" for what is not seen.

    Accents are dropped, any white space is a blank, any decimal digit an ASCII one. Some characters read as several.
    """
    folded = []
    for part in unicodedata.normalize("NFKD", char).casefold():
        if part.isspace():
            folded.append(" ")
        elif part not in _FILLERS and unicodedata.category(part) not in {"Mn", "Me", "Cf", "Cc", "Cs"}:
            digit = unicodedata.decimal(part, None)
            folded.append(_LOOKALIKES.get(part, part) if digit is None else str(digit))
    return "".join(folded)
