"""The definitions of source code, by tree-sitter's grammars; each comes as a package of its own and may be missing."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from dats_common.domain.chunking.outline import MAX_LEVEL, NO_OUTLINE, Outline, Section, one_line

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Tree


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a language names what we look for.

    Attributes:
        module, function: where its package has the grammar.
        definitions: node types that define something with a name.
        wrappers: node types that are no more than a definition's beginning and end.
        bodies: node types that hold definitions among other things.
        attached: node types that belong to a definition right behind them.
        largest_bytes: of what is parsed.
    """

    module: str
    definitions: frozenset[str]
    wrappers: frozenset[str] = frozenset()
    bodies: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset({"comment"})
    function: str = "language"
    largest_bytes: int = 200_000


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


_ECMA = Grammar(
    "tree_sitter_javascript",
    _types("class_declaration function_declaration generator_function_declaration method_definition"),
    _types("export_statement expression_statement lexical_declaration variable_declaration"),
    _types("arrow_function class class_body else_clause function_expression if_statement statement_block"),
    _types("comment decorator"),
)
_TYPESCRIPT = replace(
    _ECMA,
    module="tree_sitter_typescript",
    definitions=_ECMA.definitions
    | _types(
        "abstract_class_declaration abstract_method_signature enum_declaration function_signature "
        "interface_declaration internal_module method_signature module type_alias_declaration"
    ),
    wrappers=_ECMA.wrappers | {"ambient_declaration"},
    largest_bytes=48_000,  # `a<b<c,` over and over takes time by the square: 4 s for so much; more is not stopped.
)

GRAMMARS: Mapping[str, Grammar] = MappingProxyType(
    {
        "python": Grammar(
            "tree_sitter_python",
            _types("class_definition function_definition"),
            _types("decorated_definition"),
            _types(
                "block elif_clause else_clause except_clause finally_clause if_statement try_statement with_statement"
            ),
        ),
        "javascript": _ECMA,
        "typescript": replace(_TYPESCRIPT, function="language_typescript"),
        "tsx": replace(_TYPESCRIPT, function="language_tsx"),
        "go": Grammar(
            "tree_sitter_go",
            _types("function_declaration method_declaration type_alias type_spec"),
            _types("type_declaration"),
        ),
        "rust": Grammar(
            "tree_sitter_rust",
            _types(
                "enum_item function_item function_signature_item impl_item macro_definition mod_item struct_item "
                "trait_item type_item union_item"
            ),
            bodies=_types("declaration_list"),
            attached=_types("attribute_item block_comment line_comment"),
        ),
        "java": Grammar(
            "tree_sitter_java",
            _types(
                "annotation_type_declaration class_declaration compact_constructor_declaration constructor_declaration "
                "enum_declaration interface_declaration method_declaration record_declaration"
            ),
            bodies=_types("class_body enum_body enum_body_declarations interface_body"),
            attached=_types("block_comment line_comment"),
        ),
        "sql": Grammar(
            "tree_sitter_sql",
            _types(
                "create_function create_index create_materialized_view create_procedure create_schema create_sequence "
                "create_table create_trigger create_type create_view"
            ),
            _types("statement"),
            _types("block transaction"),
            _types("comment marginalia"),
        ),
    }
)

_VARIABLES = _types("field_definition public_field_definition variable_declarator")
_FUNCTIONS = _types("arrow_function class function function_expression generator_function")
"""In JavaScript a variable with one of these is a definition too."""

LONGEST_PARSE_S = 4.0
"""Seconds. Code takes a fraction of one; nonsense takes time by the square of its length, and all threads wait."""

_READ_BYTES = 1 << 16

_DEEPEST = 60
"""Nodes below a file that are looked into: code nests so deep, text that is no code may nest without end."""


@dataclass(frozen=True, slots=True)
class _Definition:
    """In bytes of the source."""

    start: int
    end: int
    level: int
    path: tuple[str, ...]


def find_definitions(source: str, language: str) -> Outline:
    """Sections by definitions, each with the comments and decorators before it; what lies between two of them belongs
    to what is around both.

    No sections where the language has no grammar here, or nothing is defined: also of a text that is no such code, is
    longer than the grammar's `largest_bytes`, or takes longer than `LONGEST_PARSE_S`.
    """
    grammar = GRAMMARS.get(language)
    spoken = _language(grammar) if grammar else None
    if grammar is None or spoken is None:
        return NO_OUTLINE
    raw = source.encode("utf-8", "surrogatepass")
    tree = _parsed(raw, spoken) if len(raw) <= grammar.largest_bytes else None
    if tree is None:
        return NO_OUTLINE
    found = list(_definitions(tree.root_node, grammar, (), depth=0))
    return Outline(tuple(_sections(raw, found))) if found else NO_OUTLINE


@cache
def _language(grammar: Grammar) -> Language | None:
    """None: its package is not installed, or speaks another tree-sitter's language."""
    try:
        from tree_sitter import Language

        return Language(getattr(importlib.import_module(grammar.module), grammar.function)())
    except (ImportError, ValueError):
        return None


def _parsed(raw: bytes, language: Language) -> Tree | None:
    """None: it took too long."""
    from tree_sitter import Parser

    halt_at = time.monotonic() + LONGEST_PARSE_S
    try:
        return Parser(language).parse(
            lambda start, _: raw[start : start + _READ_BYTES],
            progress_callback=lambda _, __: time.monotonic() > halt_at,
        )
    except ValueError:  # It was halted.
        return None


def _definitions(
    node: Node, grammar: Grammar, above: tuple[str, ...], *, depth: int, wrapped: tuple[int, int] | None = None
) -> Iterator[_Definition]:
    """Those within a node, outer ones before inner ones. `wrapped`: where the wrapper around it starts and ends."""
    if depth > _DEEPEST:
        return
    attached: int | None = None  # Where what belongs to the next definition starts.
    last_row = -1
    for child in node.named_children:
        if child.type in grammar.attached:
            if attached is None and child.start_point[0] > last_row:
                attached = child.start_byte
            last_row = child.end_point[0]
            continue
        start, end = wrapped or (child.start_byte if attached is None else attached, child.end_byte)
        name = _name(child, grammar)
        if name:
            path = (*above, *name)
            yield _Definition(start, end, len(above) + 1, path)
            if len(above) + 1 < MAX_LEVEL:
                yield from _definitions(child, grammar, path, depth=depth + 1)
            wrapped = None  # Others in one wrapper start where they do themselves.
        elif child.type in grammar.wrappers:
            yield from _definitions(child, grammar, above, depth=depth + 1, wrapped=(start, end))
        elif child.type in grammar.bodies:
            yield from _definitions(child, grammar, above, depth=depth + 1)
        attached, last_row = None, child.end_point[0]


def _name(node: Node, grammar: Grammar) -> tuple[str, ...] | None:
    """What a node defines, the type of a method before it where the method stands outside; None: it is no definition,
    or has no name."""
    if node.type in _VARIABLES:
        value = node.child_by_field_name("value")
        if value is None or value.type not in _FUNCTIONS:
            return None
        return _words(node.child_by_field_name("name") or node.child_by_field_name("property"))
    if node.type not in grammar.definitions:
        return None
    if node.type == "impl_item":
        return _words(node.child_by_field_name("type"))
    named = node.child_by_field_name("name") or _first(node, _types("object_reference identifier"))
    receiver = node.child_by_field_name("receiver")
    if receiver is not None and grammar.module == "tree_sitter_go":
        return (*(_words(_first(receiver, _types("type_identifier"), deep=True)) or ()), *(_words(named) or ())) or None
    return _words(named)


def _words(node: Node | None) -> tuple[str] | None:
    words = one_line((node.text or b"").decode(errors="replace")) if node else ""
    return (words,) if words else None


def _first(node: Node, types: frozenset[str], *, deep: bool = False) -> Node | None:
    """The first node of one of these types among the children; `deep`: or among what they hold."""
    waiting = list(reversed(node.named_children))
    while waiting:
        child = waiting.pop()
        if child.type in types:
            return child
        if deep:
            waiting.extend(reversed(child.named_children))
    return None


def _sections(raw: bytes, found: Sequence[_Definition]) -> Iterator[Section]:
    """A section for each definition and for each stretch of code around them, in order. One line behind a definition
    stays with it: mostly it is about it."""
    starts: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, ())]
    opened: list[_Definition] = []

    def close_until(edge: int, level: int) -> None:
        while opened and (opened[-1].level >= level or opened[-1].end <= edge):
            ended = opened.pop()
            around = opened[-1].end if opened else len(raw)
            rest = raw[ended.end : min(edge, around)]
            if _says_something(rest) and b"\n" in rest.strip():
                starts.append((ended.end, ended.level, opened[-1].path if opened else ()))

    for definition in found:
        close_until(definition.start, definition.level)
        if not _says_something(raw[starts[-1][0] : definition.start]) and starts[-1][1] == 0:
            starts.pop()  # Nothing stands before the first definition.
        starts.append((definition.start, definition.level, definition.path))
        opened.append(definition)
    close_until(len(raw), 0)
    at, characters = 0, 0
    for number, (start, level, path) in enumerate(starts):
        characters += len(raw[at:start].decode("utf-8", "surrogatepass"))
        at = start
        yield Section(characters if number else 0, level, path)


def _says_something(rest: bytes) -> bool:
    """Whether it is more than the signs that end a definition."""
    return any(byte > 127 or chr(byte).isalnum() for byte in rest)
