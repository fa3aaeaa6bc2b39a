from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.toolchain.sheet import Sheet, SheetError

SHEET = Sheet("launch", {"kernel": "kernels/x.py", "dsl": "4.8.1"}, {"launch.0.grid": "3x1x1", "launch.0.smem": "48"})
names = st.text(st.sampled_from("abc.019_"), min_size=1).filter(lambda text: not text.startswith("#"))
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


def test_a_sheet_reads_as_it_was_written() -> None:
    assert Sheet.parse(SHEET.render(), kind="launch") == SHEET


@given(st.dictionaries(names, values))
def test_any_facts_survive(facts: dict[str, str]) -> None:
    assert Sheet.parse(Sheet("codegen", {}, facts).render(), kind="codegen").facts == facts


def test_every_truncation_is_noticed() -> None:
    text = SHEET.render()
    for end in range(len(text) - 1):
        with pytest.raises(SheetError):
            Sheet.parse(text[:end], kind="launch")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda _text: "", "line 1"),
        (lambda text: text.replace("launch 1", "launch 2"), "line 1"),
        (lambda text: text.replace("  3x1x1", " 3x1x1"), "line 5"),
        (lambda text: text.replace("launch.0.smem", "launch.0.grid"), "new name"),
        (lambda text: text.replace("# end 2", "# end 3"), "counts 3 facts"),
        (lambda text: text + "more  1\n", "counts"),
        (lambda text: text.replace("launch.0.grid", "<<<<<<< HEAD\nlaunch.0.grid"), "<<<<<<< HEAD"),
    ],
)
def test_damage_is_named_by_its_line(damage: object, word: str) -> None:
    with pytest.raises(SheetError, match=word) as error:
        Sheet.parse(damage(SHEET.render()), kind="launch")  # type: ignore[operator]
    assert "--snapshot-update" in str(error.value)


def test_kinds_are_not_mixed_up() -> None:
    with pytest.raises(SheetError, match="nvfp4-codegen"):
        Sheet.parse(SHEET.render(), kind="codegen")


def test_a_count_without_end_is_a_damaged_line() -> None:
    with pytest.raises(SheetError):
        Sheet.parse("# nvfp4-launch 1\n\na  b\n# end " + "9" * 5000 + "\n", kind="launch")
