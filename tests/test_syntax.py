"""Parsing in threads, and what cannot be parsed."""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_nvfp4.syntax import parse

SOURCE = "".join(f"x{i} = [{i} + (1 - (2 * (3 + a[{i}].b(c, d=e))))]\n" for i in range(500))


class Yields:
    """Garbage that only the collector finds, and that lets other threads run when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def made(_: int) -> int:
    Yields()
    return len(parse(SOURCE).body)


@pytest.fixture
def collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(5, 1000, 1000)
    yield
    gc.set_threshold(*before)


@pytest.mark.slow
@pytest.mark.usefixtures("collecting")
def test_threads_parse_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(made, range(40))) == {500}


@pytest.mark.parametrize("source", ["a = 1 +", "a = '\0'", b"a = '\xff'", "(" * 10_000, "-" * 100_000 + "1"])
def test_what_is_no_module_is_a_syntax_error(source: str | bytes) -> None:
    with pytest.raises(SyntaxError):
        parse(source)


def test_no_other_module_of_the_package_parses_a_file() -> None:
    package = Path(__file__).parents[1] / "pytest_nvfp4"
    others = [path.name for path in package.rglob("*.py") if "ast.parse(" in path.read_text()]
    assert others == ["syntax.py"]
    assert isinstance(parse("a = 1"), ast.Module)
