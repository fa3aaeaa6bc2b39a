from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.worker.findings import described, from_exception, in_compile

KERNEL = "/home/me/kernels/k.py"


def place(error: BaseException) -> tuple[str | None, int | None]:
    finding = from_exception("compile", "k.py did not compile", error, lambda file: file == KERNEL)
    return finding.file, finding.line


@pytest.mark.parametrize(
    "text",
    [
        f"The compiler could not build valid IR for this code.\n\n  --> {KERNEL}:311:8\n      in `kernel`:",
        f"\x1b[94m-->\x1b[0m {KERNEL}:311",
        f'Verification failed:\nerror: "init("("{KERNEL}":311:8): expected alignment at least 64, but got 8',
        f'error: "x("("/dsl/cutlass/core.py":7:1): called from\n note: "y("("{KERNEL}":311:8): here',
    ],
)
def test_the_compilers_own_words_for_the_place_are_taken(text: str) -> None:
    assert place(RuntimeError(text)) == (KERNEL, 311)


@pytest.mark.parametrize("text", ["no place", "--> /dsl/cutlass/core.py:7:1", '("relative.py":3:1)', "--> :3"])
def test_places_that_are_not_the_users_are_not(text: str) -> None:
    assert place(RuntimeError(text)) == (None, None)


def test_the_cause_names_the_place_too() -> None:
    error = RuntimeError("it failed")
    error.__cause__ = RuntimeError(f"--> {KERNEL}:5:1")
    assert place(error) == (KERNEL, 5)


def raised_in(file: str, body: str, **names: object) -> BaseException:
    """The error that a file of these statements raises."""
    try:
        exec(compile(body, file, "exec"), dict(names))
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_wrapped_by_the_dsl_is_at_the_line_that_raised_it() -> None:
    def compile_it(function: object) -> None:
        source = "try:\n    function()\nexcept NameError as error:\n    raise RuntimeError('wrapped')"
        raise raised_in("/dsl/dsl.py", source, function=function)

    source = "def kernel():\n    a = 1\n    return b\n\n\ncompile_it(kernel)\n"
    assert place(raised_in(KERNEL, source, compile_it=compile_it)) == (KERNEL, 3)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_error_that_cannot_say_what_it_is_is_named() -> None:
    assert described(Mute()) == "Mute: no message, because its __str__ raised RuntimeError"
    finding = from_exception("run", "k.py failed", Mute(), lambda _: False)
    assert finding.message.startswith("k.py failed: Mute: no message")
    assert from_exception("run", "k.py failed", SystemExit(Mute()), lambda _: False).kind == "exit"


def test_what_an_error_says_is_clipped() -> None:
    finding = from_exception("run", "k.py failed", ValueError("m" * 5_000_000), lambda _: False)
    assert "more characters]" in finding.message
    assert len(finding.message) < 10_000
    assert len(finding.detail) <= 20_000


def test_what_an_error_says_does_not_steer_the_terminal_and_can_be_encoded() -> None:
    error = ValueError("a\x1b[2J\x1b]0;title\x07\x00 \udc80 b\n\tc")
    assert described(error) == "ValueError: a\\x1b]0;title\\x07\\x00 \\udc80 b\n\tc"
    finding = from_exception("run", "k.py failed", error, lambda _: False)
    assert not {"\x1b", "\x00", "\x07"} & set(finding.message + finding.detail)
    (finding.message + finding.detail).encode()


@pytest.mark.parametrize(
    ("function", "line"),
    [("def kernel(x):\n    x = 1\n    x.load()\n", 6), ("def of_a_library(x):\n    x.load()\n", 8)],
)
def test_a_compile_error_of_triton_is_at_the_line_of_the_kernel(tmp_path: Path, function: str, line: int) -> None:
    """Its lines count from the ``def``; where that is in no file of the user, the launch is named."""
    file = tmp_path / "k.py"
    file.write_text("import it\n\n@it.jit\ndef kernel(x):\n    x = 1\n    x.load()\n\nlaunch(kernel)\n")

    class CompilationError(Exception):
        src = function
        node = ast.parse(function).body[0].body[-1]  # type: ignore[attr-defined]

    def launch(*_: object) -> None:
        raise CompilationError

    text = file.read_text().replace("import it\n", "\n").replace("@it.jit", "")
    error = raised_in(str(file), text, launch=launch)
    finding = from_exception("compile", "k.py did not compile", error, lambda name: name == str(file))
    assert (finding.file, finding.line) == (str(file), line)


def test_an_error_in_a_handler_is_at_its_own_line() -> None:
    source = "try:\n    a\nexcept NameError:\n    b\n"
    assert place(raised_in(KERNEL, source)) == (KERNEL, 4)


def test_an_error_inside_the_dsl_is_at_the_line_that_called_it() -> None:
    def make_layout() -> None:
        raise raised_in("/dsl/core.py", "1 / 0")

    assert place(raised_in(KERNEL, "a = 1\nmake_layout()\n", make_layout=make_layout)) == (KERNEL, 2)


def test_an_error_of_the_dsl_without_frames_is_of_the_compile() -> None:
    kind = type("DSLUserCodeError", (Exception,), {"__module__": "cutlass.base_dsl.common"})
    assert in_compile(kind("bad"))
    assert not in_compile(ValueError("bad"))


def test_an_error_without_words_is_named() -> None:
    assert described(AssertionError()) == "AssertionError: no message"
    assert described(ValueError("ValueError: as 4.4 says it")) == "ValueError: as 4.4 says it"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "it failed: out of memory"),
        (MemoryError("a device allocation of 5 bytes"), "it failed: out of memory: a device allocation of 5 bytes"),
    ],
)
def test_a_lack_of_memory_gives_its_limit(error: MemoryError, said: str) -> None:
    found = from_exception("run", "it failed", error, lambda _: False)
    assert (found.kind, found.message) == ("memory", said)
