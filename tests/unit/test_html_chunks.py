import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dats_common.domain.chunking.html import is_page, read_html
from dats_common.domain.chunking.outline import Places
from tests.unit.chunks import cut, paths

limits = st.integers(1, 40).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2)))
MARKUP = """
<h1> </h1> <h2|id=a> </h2> <p> </p> <section|id='s'> </section> <a|name=n> </a> <td> <tr> <table> </table> <pre> </pre>
<ul> <li> </ul> <br> <b> </b> <script> </script> <nav> </nav> <div|hidden> </div> <main> </main> </x> < <a|href='
&amp; &lt; &#233; &notit; & &#0; <!--|x|--> <?pi|x?> <![CDATA[y]]>
"""
PARTS = [
    *(part.replace("|", " ") for part in MARKUP.split()),
    *["words of ", "text", " ", "\n", "\r\n", "\r", "\t", "é😀", "\u00a0", "\0"],
]
documents = st.lists(st.sampled_from(PARTS), max_size=60).map("".join).map("<p>".__add__)


@settings(deadline=None)  # The first example waits for the parser to be loaded.
@given(text=documents | st.text(alphabet="<>/ab&;=!-?'\" \n", max_size=200).map("<".__add__), limits=limits)
def test_pages_are_cut_without_loss_of_their_readable_text(text, limits):
    most, overlap = limits
    chunks = cut(text, max_tokens=most, overlap_tokens=overlap, source_uri="http://x/a.html")
    reading = read_html(text)
    shown = text if reading is None else reading.text
    for each in chunks:
        assert each.token_count <= most
        assert each.text in shown
        assert 0 <= each.char_start <= each.char_end <= len(text)
        assert each.location.line_start == text.count("\n", 0, each.char_start) + 1
    if not overlap:
        assert "".join("".join(each.text.split()) for each in chunks) == "".join(shown.split())
    assert chunks == cut(text, max_tokens=most, overlap_tokens=overlap, source_uri="http://x/a.html")


inline = st.lists(
    st.sampled_from(
        ["word", " ", "&amp;", "&lt;b&gt;", "&#233;", "é", "\n", "<b>bold</b>", "<i>", "</i>", "</x>", "&copy"]
    ),
    min_size=1,
    max_size=20,
).map("".join)


@settings(deadline=None)  # The first example waits for the parser to be loaded.
@given(blocks=st.lists(inline, min_size=1, max_size=5), newline=st.sampled_from(["\n", "\r\n"]))
def test_every_word_stands_in_the_source_where_it_is_said_to(blocks, newline):
    source = "".join(f"<p>{block}</p>\n" for block in blocks).replace("\n", newline)
    reading = read_html(source)
    if reading is None:
        return
    places = Places(source, reading)
    for word in re.finditer(r"\S+", reading.text):
        start, end = places.source_span(*word.span())
        assert html.unescape(re.sub(r"<[^>]*>", "", source[start:end])) == word.group()


PAGE = """\
<!DOCTYPE html>
<html><head><title>Not shown</title><style>p { color: red }</style></head>
<body>
<nav><a href="/">Home</a></nav>
<main>
<h1 id="top">Guide</h1>
<p>Read it all, from here to the end.</p>
<section id="install"><h2>Install &amp; run</h2>
<p>Run the command that your system has for it, then wait.</p>
<pre><code>apt install guide
  # as root
</code></pre>
</section>
<h2><a name="use"></a>Use</h2>
<table><tr><th>option</th><th>meaning</th></tr><tr><td><p>-v</p></td><td>more words</td></tr></table>
<script>alert(1)</script>
<ul><li>one</li><li>two</li></ul>
</main>
<footer role="contentinfo">Imprint</footer>
</body></html>
"""


def test_a_page_is_cut_by_headings_and_each_chunk_has_an_anchor():
    chunks = cut(PAGE, max_tokens=25, source_uri="https://example.org/guide.html")
    assert [(path, each.location.anchor) for path, each in zip(paths(chunks), chunks, strict=True)] == [
        ("Guide", "top"),
        ("Guide > Install & run", "install"),
        ("Guide > Use", "use"),
    ]
    assert chunks[0].text == "Guide\n\nRead it all, from here to the end."
    assert chunks[1].text == (
        "Install & run\n\nRun the command that your system has for it, then wait.\n\napt install guide\n  # as root"
    )
    assert chunks[2].text == "Use\n\noption | meaning\n-v | more words\n\none\ntwo"
    assert [(each.location.line_start, each.location.line_end) for each in chunks] == [(6, 7), (8, 11), (14, 17)]


def test_a_chunk_maps_to_its_source():
    chunk = cut(PAGE, max_tokens=25, source_uri="https://example.org/guide.html")[1]
    assert PAGE[chunk.char_start : chunk.char_end].startswith("Install &amp; run</h2>")
    assert PAGE[chunk.char_start : chunk.char_end].endswith("# as root")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a<b>b</b> c\n\n d</p>", "ab c d"),
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("<p>one<br>two", "one\ntwo"),
        ("<dl><dt>term<dd>meaning</dl>", "term\nmeaning"),
        ("<?xml version='1.0'?><!DOCTYPE html><p>text", "text"),
        ("<p>a &lt;b&gt; &notin; c", "a <b> ∉ c"),
        ("<p>x<svg><text>no</text></svg>y", "xy"),
        ("<p aria-hidden=true>no</p><p hidden>no</p><p>yes", "yes"),
        ("<div class='navheader'>no</div><h1>T<a class='headerlink'>¶</a></h1>", "T"),
        ("<pre>\n  a\n\n    <b>b</b>\n</pre>c", "  a\n\n    b\n\nc"),
        ("<noscript>without scripts</noscript>", "without scripts"),
        ("<table><tr><td>layout<p>of</p><p>a page</p></td></tr></table>", "layout\n\nof\n\na page"),
        ("<p>outer</p><main><p>inner</p></main>", "inner"),
        ("<template>no</template><textarea>no</textarea><p>1 < 2", "1 < 2"),
        ("<p>a<!x>b<?y>c<![CDATA[d]]>e", "a b c e"),
        (
            "<html><body><p>Intro.</p><!--[if IE]><p>old</p><![endif]--><h1>Title</h1><p>All the text.</p><!-- end -->"
            "<p>tail</p>",
            "Intro.\n\nTitle\n\nAll the text.\n\ntail",
        ),
        (
            '<head><!--[if lt IE 9]><script src="x.js"></script><![endif]--></head><body><h1>A</h1><p>b</p></body>',
            "A\n\nb",
        ),
        ("<!--[if !IE]><!--><p>one</p><!--<![endif]--><p>two", "one\n\ntwo"),
        ("<!--><p>one</p><!---><p>two</p><!-- --!><p>three", "one\n\ntwo\n\nthree"),
        ("<p>one</p><script>if(a<!b)c()</script><p>two</p>", "one\n\ntwo"),
        ("<title>a<!b</title><STYLE>/*<?*/</style ><p>two</p>", "two"),
        ('<p title="<?x">two</p>', "two"),
        ("<p title=a<?x>two</p>", "two"),
        ("<p id=x?a='>one</p><script>'<!b</script><p>two</p>", "one\n\ntwo"),
        ('<p id==">one</p><script>"<!b</script><p>two</p>', "one\n\ntwo"),
        ("<p a=>one</p><script>if(a<!b)c()</script><p>two</p>", "one\n\ntwo"),
        ("<p title = '>' id=\"<!\">one</p><p>two</p>", "one\n\ntwo"),
        ("<p>one</p><plaintext><!x>", "one\n\n<!x>"),
        ("<p>outer</p><main> <script>fill()</script></main>", "outer"),
        ("<h3><button>Why?</button></h3><p>So.<button>Close</button>", "Why?\n\nSo."),
    ],
)
def test_what_is_readable_of_a_page(page, text):
    assert read_html(page).text == text


@pytest.mark.parametrize(
    ("page", "anchor"),
    [
        ("<h1>T<a id='within'></a></h1><p>text", "within"),
        ("<div id=far><p>words</p></div><p>text", "far"),
        ("<div id=outer><section id=inner><h2>T</h2>", "inner"),
        ("<p id='has space'>text", None),
        ("<p>text", None),
        ("<p>text</p><h2 id=later>T</h2>", None),
    ],
)
def test_the_anchor_is_the_nearest_one_that_begins_no_later(page, anchor):
    assert cut(page, max_tokens=3, source_uri="a.html")[0].location.anchor == anchor


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("tag", ["pre", "listing"])
def test_preformatted_text_knows_its_lines_behind_the_line_end_that_counts_for_nothing(tag, newline):
    page = f"<p>x\n<{tag}>\none &amp;\n two</{tag}>".replace("\n", newline)
    reading = read_html(page)
    assert reading.text == "x\n\none &\n two"
    start, end = Places(page, reading).source_span(3, len(reading.text))
    assert page[start:end] == f"one &amp;{newline} two"


def test_a_heading_in_a_heading_ends_it():
    assert paths(cut("<h1 id=a>A<div><h2 id=b>B</h2></div></h1><p>text", max_tokens=2, source_uri="a.html")) == [
        "A",
        "A > B",
    ]


def test_a_web_page_has_no_pages():
    (only,) = cut("<p>one\ftwo</p>", max_tokens=20, source_uri="a.html")
    assert (only.text, only.location.page) == ("one two", None)


def test_a_page_without_a_name_is_known_by_its_first_words():
    assert cut("<!doctype html><p>shown", max_tokens=20)[0].text == "shown"
    assert cut("<p>a fragment in a text", max_tokens=20)[0].text == "<p>a fragment in a text"


def test_what_was_read_off_a_page_already_is_text():
    text = "Lines\nstay  as they <i>are</i>"
    assert [each.text for each in cut(text, max_tokens=50, source_uri="a.html")] == [text]


def test_a_page_without_readable_text_is_kept_as_it_is():
    assert [each.text for each in cut("<script>x</script>", max_tokens=50, source_uri="a.html")] == [
        "<script>x</script>"
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "<div>",
        "<!--",
        "<a x='",
        "&",
        "<td>a",
        "<h1>a",
        "<b><p>",
        "<?",
        "<a id=b>c",
        "<pre>\n",
        "</p>",
        "<!---->",
        "<!--[if",
        "<a b=",
        "<a b='c",
        "<script>",
        "<title><!",
        '<a b==""',
    ],
)
def test_a_large_page_takes_seconds_at_most(unit):
    assert cut("<p>x " + (unit * 200_000)[:200_000], max_tokens=254, overlap_tokens=25, source_uri="a.html")


@pytest.mark.timeout(20)
def test_what_only_looks_like_tags_in_plain_text_takes_seconds_at_most():
    text = "&" + "<a" * 250_000
    assert read_html(f"<plaintext>{text}").text == text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("beginning", ["<!---->", "<!-- -->", " ", "<!-- - ->", "<?xml "])
def test_whether_nonsense_is_a_page_is_seen_at_once(beginning):
    assert not is_page(beginning * 300 + "x")


@pytest.mark.parametrize(
    "page",
    [
        "<html>",
        "\ufeff <?xml version='1.0'?>\n<!-- a - -- b -->\n<!----><!DOCTYPE\nHTML>",
        "<!--\n-->\n<HTML lang=en>",
    ],
)
def test_a_page_says_so_at_its_beginning(page):
    assert is_page(page)
    assert not is_page(f"x{page}")
