"""Text that was retrieved is data: before it enters a prompt it loses what could pass for a part of the prompt. Pure.

Three things could: a citation marker, which the answer's reader would take for a citation; one of our delimiters,
behind which a text would speak as the prompt itself; and a control token of a chat template, which some servers parse
wherever it stands. Their brackets become parentheses, so that people and models still read what was written. What
nobody sees (zero-width, bidirectional, tag and control characters, variation selectors) goes, because it hides the
other three from us, or instructions from the people who approved the text. All else stays as it was.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from dats_common.domain.citations import defuse_markers, fold

_VISIBLE_ASCII = re.compile(r"[\t-\r -~]*")
_UNSEEN_RANGES = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x2065, 0x2065),  # reserved
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors: any bytes can be written with them behind a visible character
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFF8),  # reserved
    (0xE0000, 0xE0FFF),  # tags, and the other variation selectors
)
"""Ignored when shown, though not of category Cf. Source: Unicode, Default_Ignorable_Code_Point."""

# All of folded text: lower case, ASCII brackets and bars, white space as single blanks. What may repeat without bound
# is one run that is tried from its beginning only and never in parts, so that the work grows with the text.
_ROLE_TOKENS = r"<\| ?[\w:/.-]{1,60} ?\|>"  # Llama 3, ChatML, Phi, Qwen, DeepSeek: `<|im_start|>`, `<|eot_id|>`
_LLAMA_2_TOKENS = r"<< ?/? ?sys ?>>|\[ ?/? ?inst ?\]"
_MISTRAL_TOKENS = r"\[ ?/? ?(?:system_prompt|available_tools|tool_calls|tool_results|tool_content) ?\]"
_TAG_TOKENS = (
    r"< ?/? ?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|start_of_image|end_of_image"
    r"|think|thinking|tool_call|tool_response|tools) ?/? ?>"  # SentencePiece, Gemma, reasoning models, Hermes
)
_DELIMITERS = (
    r"(?<!<)(?<!< )<(?: ?<){2,}+ ?/? ?(?:(?:begin|start|end) )?(?:of )?(?:the )?source"
    r"(?:[^<>]{0,40}>(?: ?>){2,}+)?"
)
_PROMPT_SIGNS = re.compile("|".join((_ROLE_TOKENS, _LLAMA_2_TOKENS, _MISTRAL_TOKENS, _TAG_TOKENS, _DELIMITERS)))
_PARENTHESES = str.maketrans("<[>]", "(())")


def neutralise(text: str) -> str:
    """The text as data: it holds no citation marker, none of our delimiters, no control token, nothing unseen.

    Brackets of such a sign become parentheses (`[1]`: `(1)`, `<|im_end|>`: `(|im_end|)`), whatever case, width, spacing
    or lookalike letters it was written with. Subscripts (`a[1]`), assigned lists and other brackets stay, and so does
    neutral text.
    """
    seen = text if _VISIBLE_ASCII.fullmatch(text) else "".join(filter(_is_seen, text))
    unmarked = defuse_markers(seen)
    unsigned = _defuse_prompt_signs(unmarked)
    # Brackets that went may have stood in the way of a marker around them.
    return unmarked if unsigned == unmarked else defuse_markers(unsigned)


@lru_cache(maxsize=8192)
def _is_seen(char: str) -> bool:
    category = unicodedata.category(char)
    if category in {"Cf", "Cs"} or (category == "Cc" and not char.isspace()):
        return False
    return not any(first <= ord(char) <= last for first, last in _UNSEEN_RANGES)


def _defuse_prompt_signs(text: str) -> str:
    if text.isascii() and "<" not in text and "[" not in text:
        return text  # Every sign begins with one of them; beyond ASCII others read as these.
    folded, origins = _fold_with_origins(text)
    chars = list(text)
    for sign in _PROMPT_SIGNS.finditer(folded):
        for place in {origins[place] for place in range(*sign.span())}:
            chars[place] = _in_parentheses(chars[place])
    return "".join(chars)


def _in_parentheses(char: str) -> str:
    """A bracket, or what reads as one or several, as parentheses; any other character as it is."""
    folded = fold(char)
    return folded.translate(_PARENTHESES) if folded and not folded.strip("<[>]") else char


def _fold_with_origins(text: str) -> tuple[str, list[int]]:
    """What the text reads as, with runs of white space as single blanks, and where each of its characters came from."""
    folded: list[str] = []
    origins: list[int] = []
    for place, char in enumerate(text):
        for sign in fold(char):
            if sign != " " or folded[-1:] != [" "]:
                folded.append(sign)
                origins.append(place)
    return "".join(folded), origins
