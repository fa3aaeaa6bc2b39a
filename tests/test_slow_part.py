"""``--slow-part``: successive parts have every test marked slow once, and each has all others."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_one_of_many(number): pass

def test_other(): pass
"""


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    ran = pytester.runpytest_inprocess("-p", "no:nvfp4", "--collect-only", "-q", *arguments)
    assert ran.ret == pytest.ExitCode.OK
    return [line.partition("::")[2] for line in ran.outlines if "::" in line]


@pytest.fixture(autouse=True)
def _tests(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(test_slow=TESTS)


def test_successive_parts_have_all_of_it(pytester: pytest.Pytester) -> None:
    every = collected(pytester)
    parts = [collected(pytester, "--slow-part", f"{commit}/3") for commit in (1180, 1181, 1182)]
    assert sorted(name for part in parts for name in part if name != "test_other") == sorted(every[:-1])
    assert [len(part) for part in parts] == [3, 3, 4]
    assert all("test_other" in part for part in parts)


@pytest.mark.parametrize("part", ["3", "a/b", "1/0"])
def test_what_is_no_part_is_refused(pytester: pytest.Pytester, part: str) -> None:
    ran = pytester.runpytest_inprocess("-p", "no:nvfp4", "--slow-part", part)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*--slow-part: '{part}' is not I/N, such as 2/3"])
