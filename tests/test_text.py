import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.text import clip, json_text, plural, printed, visible, without_commands
from tests.report.report_samples import HOSTILE


@given(st.text(st.characters(codec=None), max_size=40))
def test_nothing_that_acts_survives(text):
    shown = visible(text)
    assert not [char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}]
    shown.encode("utf-8")


def test_new_lines_stay_in_messages_only():
    assert visible("a\r\nb\tc", multiline=True) == "a\nb\tc"
    assert visible("a\r\nb\tc") == "a\\r\\nb\\tc"


def test_ordinary_text_is_left_alone():
    assert visible("kernel.sA (128,64):(256,1) é → 层") == "kernel.sA (128,64):(256,1) é → 层"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_readable(text):
    assert visible(text)


def test_clip_counts_what_it_leaves_out():
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 2) == "ab ... [4 characters left out]"


def test_plural():
    assert (plural(1, "check"), plural(2, "check"), plural(0, "check")) == ("1 check", "2 checks", "0 checks")


ACTING = (
    "\x1b]0;title\x07 \x1b[2J\x9b31m \u202egnp.exe \u200bx \u3164y \ufeff \x00 \r over \u2028\n"
    "::error file=a.py,line=1::forged\n  \u00a0::stop-commands::token\nfine ##[add-mask]x ##vso[task.complete]\n"
)
"""What a terminal, a reader or the runner of a CI would take for more than text."""
COMMAND = re.compile(r"^\s*::|##\[|##vso\[", re.MULTILINE)


def hidden(text: str) -> set[str]:
    """The characters of a text that are not shown as they are."""
    return {char for char in text if unicodedata.category(char)[0] == "C" or char in "\u2028\u2029\u3164"} - {
        "\n",
        "\t",
    }


def test_what_is_printed_is_text_alone() -> None:
    shown = printed(ACTING)
    assert not hidden(shown)
    assert COMMAND.search(ACTING)
    assert COMMAND.search(shown) is None
    assert printed(shown) == shown, "it may pass two sinks"
    assert "forged" in shown
    assert shown.count("\n") == ACTING.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "Traceback:\n\tFile \"k.py\", line 3\n\u00fcber = \u03b1 + \u65e5\u672c \U0001f600\n",
        "std::vector<int> and a::b::c, # a comment, ## a heading",
        "key: value :: more",
        '    ::"r"(dst), "l"(map) : "memory");\n    :: "r"(bar)\n  ::\'x\'',
        "",
    ],
)  # fmt: skip
def test_honest_text_is_printed_as_it_is(text: str) -> None:
    assert printed(text) == text
    assert json.loads(json_text({"text": text})) == {"text": text}


@pytest.mark.parametrize("line", ["::error::no", "  ::add-mask::a", ":: error::no", "a\n\t::stop-commands::t"])
def test_workflow_commands_are_none(line: str) -> None:
    assert printed(line) == line.replace("::", "\\x3a:", 1)


def test_colours_of_others_are_dropped_and_own_ones_stay() -> None:
    assert printed("\x1b[1;31mred\x1b[0m") == "red"
    assert without_commands("\x1b[1m::\x1b[0m ##[x]") == "\x1b[1m::\x1b[0m #\\x23[x]"


def test_json_on_a_terminal_is_the_same_json() -> None:
    value = {"hostile": ACTING, ACTING: [1, None, "\x7f", "\U000e0001"]}
    text = json_text(value)
    assert json.loads(text) == value
    assert not hidden(text)
    assert COMMAND.search(text) is None


@given(st.text())
def test_any_text_is_printed_safely(text: str) -> None:
    assert not hidden(printed(text))
    assert COMMAND.search(printed(text)) is None
    assert json.loads(json_text(text)) == text
