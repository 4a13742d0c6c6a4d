"""Documents' words on an operator's terminal: shown, never obeyed."""

import pytest

from services.cli.console import Voice

SNIPPETS = [
    r'_PART = re.compile(r"[\[/]")',
    r"\[a-z]+\[0-9]",
    "[bold]not bold[/bold] [/]",
    "a [link=https://x]no link[/link]",
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_what_looks_like_markup_is_shown_as_it_is(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    voice = Voice()
    voice.table(snippet, ("snippet",), [(snippet,)])
    voice.say(snippet)
    assert capsys.readouterr().out.count(snippet[:12]) == 3


def test_no_document_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "Title\x1b]0;owned\x07\x1b[2J\x9b31mred\r\x08"
    voice = Voice()
    voice.table(hostile, ("where",), [(hostile,)])
    voice.say(hostile)
    voice.note(hostile)
    said = capsys.readouterr()
    for stream in (said.out, said.err):
        assert "owned" in stream
        assert not {*stream} & {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}
