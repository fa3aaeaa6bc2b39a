"""Lines of progress reach the terminal while a test runs, whose output is captured."""

from __future__ import annotations

import pytest

SOURCE = """
from pytest_nvfp4.plugin.state import RUN

def test_it(request):
    print("captured")
    request.config.stash[RUN].notify("building")
    print("captured")
"""


@pytest.mark.parametrize("options", [(), ("-s",), ("-q",)])
def test_a_line_of_progress_is_shown(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(SOURCE)
    done = pytester.runpytest_subprocess(*options)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["nvfp4: building"])
    assert ("captured" in done.stdout.str()) == (options == ("-s",))


@pytest.mark.slow
def test_a_process_of_xdist_writes_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOURCE)
    done = pytester.runpytest_subprocess("-n2")
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*building*")
