"""Definitions in source code, by the grammars that the writer's extra installs."""

import importlib
import inspect
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dats_common.adapters.definitions import GRAMMARS, find_definitions
from dats_common.domain.chunking.outline import NO_OUTLINE
from tests.unit.chunks import check_slices, cut, paths

SAMPLES = {
    "python": (
        "import os\n\n# Adds.\n@cache\ndef add(a, b):\n    return a + b\n\nclass Box:\n    size = 1\n\n"
        "    async def open(self):\n        pass\n\n    size = 2\n    top = 3\n\nif os:\n    def late(): ...\n",
        ["", "add", "Box", "Box > open", "Box", "late"],
    ),
    "javascript": (
        'import a from "a";\n/** Adds. */\nexport function add() { return 1 }\nclass Box { open() {} }\n'
        "const far = async () => { function inner() {} };\nlet x = 1;\nlet y = 2;\n",
        ["", "add", "Box", "Box > open", "far", "far > inner", ""],
    ),
    "typescript": (
        "interface Shape { area(): number }\ntype Id = string;\nenum Kind { A }\n"
        "namespace Tools { export function cut(): void {} }\n@sealed\nabstract class Box<T> { abstract open(): T }\n",
        ["Shape", "Id", "Kind", "Tools", "Tools > cut", "Box", "Box > open"],
    ),
    "tsx": ("export function App() { return <p>{1}</p> }\nconst Row: FC = () => <tr/>;\n", ["App", "Row"]),
    "go": (
        'package main\n\nimport "fmt"\n\n// Box holds.\ntype Box struct { a int }\n\n'
        "func (b *Box) Open() int { return 1 }\nfunc Add[K any](k K) { fmt.Println(k) }\nconst X = 1\nconst Y = 2\n",
        ["", "Box", "Box > Open", "Add", ""],
    ),
    "rust": (
        "use a::b;\n/// Holds.\n#[derive(Debug)]\npub struct Box { a: u8 }\nimpl Lid for Box { fn open(&self) {} }\n"
        "mod tools { pub fn cut() {} }\ntrait Lid { fn open(&self); }\nmacro_rules! mm { () => {} }\nfn main() {}\n",
        ["", "Box", "Box", "Box > open", "tools", "tools > cut", "Lid", "Lid > open", "mm", "main"],
    ),
    "java": (
        "package a;\nimport b.C;\n/** Holds. */\n@X public class Box<T> { int f; Box() {} void open() {} class Lid {} }"
        "\ninterface Shape { void area(); }\nenum Kind { A; void r() {} }\nrecord Pair(int a) { }\n",
        ["", "Box", "Box > Box", "Box > open", "Box > Lid", "Shape", "Shape > area", "Kind", "Kind > r", "Pair"],
    ),
    "sql": (
        "-- Holds.\nCREATE TABLE app.box (id int PRIMARY KEY);\nCREATE VIEW lids AS SELECT 1;\nSELECT a\nFROM b;\n"
        "CREATE FUNCTION f(a int) RETURNS int AS $$ SELECT 1 $$ LANGUAGE sql;\nCREATE INDEX near ON app.box (id);\n",
        ["app.box", "lids", "", "f", "near"],
    ),
}


def test_every_language_has_a_sample():
    assert SAMPLES.keys() == GRAMMARS.keys()


@pytest.mark.parametrize("language", SAMPLES)
def test_definitions_are_found_with_their_names(language):
    source, names = SAMPLES[language]
    assert [" > ".join(section.path) for section in find_definitions(source, language).sections] == names


@pytest.mark.parametrize("language", SAMPLES)
def test_comments_and_decorators_belong_to_what_follows(language):
    source, _ = SAMPLES[language]
    outline = find_definitions(f"é = 1 \n{source}" if language == "python" else source, language)
    text = f"é = 1 \n{source}" if language == "python" else source
    starts = {" > ".join(section.path): text[section.start :] for section in reversed(outline.sections)}
    expected = {
        "python": ("add", "# Adds.\n@cache\ndef add"),
        "javascript": ("add", "/** Adds. */\nexport function add"),
        "typescript": ("Box", "@sealed\nabstract class Box"),
        "tsx": ("App", "export function App"),
        "go": ("Box", "// Box holds.\ntype Box"),
        "rust": ("Box", "/// Holds.\n#[derive(Debug)]\npub struct Box"),
        "java": ("Box", "/** Holds. */\n@X public class Box"),
        "sql": ("app.box", "-- Holds.\nCREATE TABLE app.box"),
    }
    name, beginning = expected[language]
    assert starts[name].startswith(beginning)


limits = st.integers(1, 40).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2)))


@settings(deadline=None)  # The first example waits for the parser to be loaded.
@given(data=st.data(), limits=limits, language=st.sampled_from(sorted(SAMPLES)))
def test_code_is_cut_without_loss_within_the_window(data, limits, language):
    pieces = [line + "\n" for line in SAMPLES[language][0].splitlines()] + ["}\n", "é = '😀'\n", "\ud800", "\0", '"']
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=30)))
    most, overlap = limits
    asked = {"max_tokens": most, "overlap_tokens": overlap, "domain": "code", "language": language}
    chunks = cut(text, find_definitions=find_definitions, **asked)
    check_slices(text, chunks, window_tokens=most)
    assert chunks == cut(text, find_definitions=find_definitions, **asked)


def test_a_module_is_cut_between_definitions():
    module = importlib.import_module("textwrap")
    source = inspect.getsource(module)
    chunks = cut(source, max_tokens=254, overlap_tokens=25, source_uri="textwrap.py", find_definitions=find_definitions)
    check_slices(source, chunks, window_tokens=254)
    by_name = {each.location.heading_path: each for each in reversed(chunks)}
    lines, first = inspect.getsourcelines(module.shorten)
    shorten = by_name[("shorten",)]
    assert shorten.location.line_start == first
    assert shorten.location.line_end == first + len(lines) - 1
    assert shorten.text.startswith("def shorten")
    assert ("TextWrapper", "_wrap_chunks") in by_name


def test_a_class_that_fits_stays_whole_and_a_long_one_is_cut_by_methods():
    method = "    def m{0}(self):\n        return 'some words to fill the method {0}'\n\n"
    source = "class Box:\n    size = 1\n\n" + "".join(method.format(n) for n in range(6))
    assert paths(cut(source, max_tokens=200, source_uri="a.py", find_definitions=find_definitions)) == ["Box"]
    chunks = cut(source, max_tokens=30, source_uri="a.py", find_definitions=find_definitions)
    assert paths(chunks) == ["Box", *(f"Box > m{n}" for n in range(6))]


@pytest.mark.parametrize("language", ["cobol", ""])
def test_a_language_without_a_grammar_has_no_definitions(language):
    assert find_definitions("def a(): pass", language) == NO_OUTLINE


@pytest.mark.parametrize("language", SAMPLES)
def test_prose_has_no_definitions_and_is_cut_as_prose(language):
    prose = "Nothing here is defined. It is text. " * 30
    assert find_definitions(prose, language) == NO_OUTLINE
    as_code = cut(prose, max_tokens=20, domain="code", language=language, find_definitions=find_definitions)
    assert as_code == cut(prose, max_tokens=20)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("language", SAMPLES)
@pytest.mark.parametrize("unit", ["(", "{", '"', "class A{", "if x:\n ", "def a():\n", "/*", "<"])
def test_large_nonsense_takes_seconds_at_most(unit, language):
    find_definitions((unit * 100_000)[: min(100_000, GRAMMARS[language].largest_bytes)], language)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("unit", "language"),
    [("\\\n", "python"), ("a<b<c,", "typescript"), ("a<b<c,", "tsx"), ('r#"', "rust")],
    ids=["python", "typescript", "tsx", "rust"],
)
def test_what_takes_time_by_the_square_is_text(unit, language):
    """Each of them takes minutes to parse, the whole process waiting."""
    assert find_definitions(unit * (190_000 // len(unit)), language) == NO_OUTLINE


@pytest.mark.timeout(30)
@pytest.mark.parametrize("language", ["typescript", "tsx"])
def test_the_slowest_that_is_parsed_takes_seconds(language):
    source = "a<b<c," * 10_000
    assert find_definitions(source[: GRAMMARS[language].largest_bytes], language) == NO_OUTLINE


@pytest.mark.parametrize("language", SAMPLES)
def test_definitions_are_found_up_to_the_largest_source_and_not_beyond(language):
    source, _ = SAMPLES[language]
    largest = source.ljust(GRAMMARS[language].largest_bytes)
    assert find_definitions(largest, language).sections[0].start == 0
    assert find_definitions(largest + " ", language) == NO_OUTLINE
    widest = "é" + largest[:-1]
    assert find_definitions(widest, language) == NO_OUTLINE  # Bytes count.


MISSING = """
import importlib, sys
for name in ("tree_sitter", "tree_sitter_python"):
    sys.modules[name] = None
from dats_common.adapters.definitions import find_definitions
assert find_definitions("def a(): pass", "python").sections == ()
"""


def test_without_the_grammars_code_is_text():
    subprocess.run([sys.executable, "-c", MISSING], check=True, timeout=60)


def test_importing_the_adapter_loads_no_grammar():
    program = "import sys, dats_common.adapters.definitions; assert not [m for m in sys.modules if 'tree_sitter' in m]"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
