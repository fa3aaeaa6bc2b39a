import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.text import clip, plural, visible
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
