from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_nvfp4.settings import SettingsError, find_root, load, matches_any


def project(tmp_path: Path, text: str) -> Path:
    (tmp_path / "pyproject.toml").write_text(text)
    return tmp_path


FULL = """
[tool.pytest_nvfp4]
arch = "sm_100a"
protected = ["*.sA"]
problems.small = { m = [40, 96], n = 128, k = 256 }

[[tool.pytest_nvfp4.kernel]]
path = "kernels/*/sm100.py"
problems = ["small", "gpumode-3"]

[[tool.pytest_nvfp4.kernel]]
path = "examples/**/dense.py"
name = "one"
entry = "examples/build.py::one"
arch = "sm_90a"

[[tool.pytest_nvfp4.kernel]]
path = "examples/**/dense.py"
name = "two"
entry = "examples/build.py::two"
compile-options = "--opt-level 2"
protected = ["x.y"]
"""


def test_everything_is_read(tmp_path: Path) -> None:
    settings = load(project(tmp_path, FULL))
    (kernel,) = settings.for_kernel(tmp_path / "kernels/gemm/sm100.py")
    assert kernel.problems is not None
    assert [problem.name for problem in kernel.problems] == ["small", "gpumode-3"]
    assert kernel.protected == ("*.sA",)
    one, two = settings.for_kernel(tmp_path / "examples/a/b/dense.py")
    assert (one.name, one.entry, one.arch, one.problems) == ("one", "examples/build.py::one", "sm_90a", None)
    assert (two.name, two.compile_options, two.protected) == ("two", ("--opt-level 2",), ("x.y",))
    assert settings.for_kernel(tmp_path / "examples/dense.py")[0].name == "one"


def test_an_exercise_is_now_a_contract(tmp_path: Path) -> None:
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nexercise = "k.py::exercise"\n'
    with pytest.raises(SettingsError, match=r"exercise = 'k\.py::exercise' .*replaced by a contract of your own"):
        load(project(tmp_path, table))


def test_a_contract_is_a_known_name_or_a_file(tmp_path: Path) -> None:
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\n'
    with pytest.raises(SettingsError, match=r"no contract is called 'nvfp4_gem'; known are nvfp4_group_gemm"):
        load(project(tmp_path, table + 'contract = "nvfp4_gem"\n'))
    with pytest.raises(SettingsError, match=r"c\.py is no file"):
        load(project(tmp_path, table + 'contract = "c.py::Own"\n'))
    with pytest.raises(SettingsError, match=r"call = 'k\.py::f' .*requires a contract of your own"):
        load(project(tmp_path, table + 'call = "k.py::f"\n'))
    (tmp_path / "c.py").write_text("")
    own = load(project(tmp_path, table + 'contract = "c.py::Own"\ncall = "k.py::f"\nentry = "k.py::g"\n'))
    (settings,) = own.for_kernel(tmp_path / "k.py")
    assert settings.own_contract == f"{tmp_path / 'c.py'}::Own"
    assert settings.is_run
    assert settings.on_side_stream
    (gemm,) = load(project(tmp_path, table + 'contract = "nvfp4_gemm"\nproblems = "gpumode"\n')).for_kernel(
        tmp_path / "k.py"
    )
    assert gemm.problems is not None
    assert {problem.contract for problem in gemm.problems} == {"nvfp4_gemm"}


def test_other_kernels_get_the_defaults(tmp_path: Path) -> None:
    settings = load(project(tmp_path, FULL))
    (kernel,) = settings.for_kernel(tmp_path / "kernels/sm100.py")
    assert kernel.problems is None
    assert not settings.names_kernel(tmp_path / "kernels/sm100.py")
    assert settings.names_kernel(tmp_path / "kernels/gemm/sm100.py")


def test_without_a_file_everything_is_default(tmp_path: Path) -> None:
    (kernel,) = load(tmp_path).for_kernel(tmp_path / "x.py")
    assert (kernel.arch, kernel.entry, kernel.compile_options) == ("sm_100a", None, ())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[tool", "TOML"),
        ("[tool]\npytest_nvfp4 = 3", "must be a table"),
        ("[tool.pytest_nvfp4]\narchs = 'x'", "unknown key 'archs'"),
        ("[tool.pytest_nvfp4]\narch = 'B200'", "arch = 'B200'"),
        ("[tool.pytest_nvfp4]\nprotected = [1]", "list of strings"),
        ("[tool.pytest_nvfp4]\nproblems = 1", "problems = 1"),
        ("[tool.pytest_nvfp4]\nproblems.x = 1", "table with m, n and k"),
        ("[tool.pytest_nvfp4]\nproblems.x = { m = 1, n = 1 }", "k = None"),
        ("[tool.pytest_nvfp4]\nproblems.'a b' = { m = 1, n = 1, k = 1 }", "name of letters"),
        ("[tool.pytest_nvfp4]\nkernel = 1", r"\[\[tool.pytest_nvfp4.kernel\]\]"),
        ("[[tool.pytest_nvfp4.kernel]]\nname = 'x'", "path = None"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'x'\nentry = 'nope'", "FILE::FUNCTION"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'x'\nname = 'a b'", "name = 'a b'"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'x'\nproblems = ['nope']", "no problem is called 'nope'"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'x'\ncompile_options = []", "unknown key 'compile_options'"),
        ("[tool.pytest_nvfp4]\nnetwork = 'on'", "network = 'on'.* true or false is expected"),
        ("[tool.pytest_nvfp4]\nreadable = ['nowhere']", "readable = '.*nowhere'.* there is no such file or folder"),
        ("[tool.pytest_nvfp4]\ntorch-operators = 1", "torch-operators = 1 .*true or false is expected"),
        ("[tool.pytest_nvfp4]\nside-stream = 'on'", "side-stream = 'on'.* true or false is expected"),
    ],
)
def test_mistakes_are_named_with_file_and_value(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as error:
        load(project(tmp_path, text))
    assert str(tmp_path / "pyproject.toml") in str(error.value)


def test_what_a_kernel_may_read_is_relative_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "[tool.pytest_nvfp4]\nreadable = ['data']\n[[tool.pytest_nvfp4.kernel]]\npath = 'k.py'\nnetwork = true"
    (kernel,) = load(project(tmp_path, text)).for_kernel(tmp_path / "k.py")
    assert (kernel.readable, kernel.network) == ((str(tmp_path / "data"),), True)


@pytest.mark.parametrize(
    ("text", "on"),
    [("", False), ("entry = 'k.py::go'", True), ("side-stream = true", True)],
    ids=["GPU MODE's contract", "an own contract", "set"],
)
def test_a_side_stream_follows_the_contract_unless_it_is_set(tmp_path: Path, text: str, on: bool) -> None:
    (kernel,) = load(project(tmp_path, f"[[tool.pytest_nvfp4.kernel]]\npath = 'k.py'\n{text}")).for_kernel(
        tmp_path / "k.py"
    )
    assert kernel.on_side_stream is on
    (off,) = load(
        project(tmp_path, "[[tool.pytest_nvfp4.kernel]]\npath = 'k.py'\nentry = 'k.py::go'\nside-stream = false")
    ).for_kernel(tmp_path / "k.py")
    assert not off.on_side_stream


def test_two_configurations_of_a_file_need_names(tmp_path: Path) -> None:
    settings = load(project(tmp_path, '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\n' * 2))
    with pytest.raises(SettingsError, match="give each its own `name`"):
        settings.for_kernel(tmp_path / "k.py")


@pytest.mark.parametrize(
    ("glob", "fits", "not_"),
    [
        ("kernels/**/*.py", ["kernels/a.py", "kernels/a/b/c.py"], ["a.py", "kernels/a.txt", "xkernels/a.py"]),
        ("kernels/*.py", ["kernels/a.py"], ["kernels/a/b.py"]),
        ("k?.py", ["k1.py"], ["k.py", "k12.py", "k/.py"]),
        ("k[!0-9].py", ["kx.py"], ["k1.py"]),
        ("a.b/*", ["a.b/c.py"], ["axb/c.py"]),
    ],
)
def test_globs(tmp_path: Path, glob: str, fits: list[str], not_: list[str]) -> None:
    assert [name for name in fits + not_ if matches_any(tmp_path / name, [glob], root=tmp_path)] == fits


def test_the_root_is_the_nearest_folder_with_settings(tmp_path: Path) -> None:
    project(tmp_path, "[tool.pytest_nvfp4]\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\n")
    kernel = inner / "k.py"
    kernel.write_text("")
    assert find_root(kernel) == tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 100_000, "TOML"),
        ("x = " + "{a=" * 5000, "TOML"),
        ("x = " + "9" * 5000, "TOML"),
        ('x = "\\ud800"', "TOML"),
        ("[tool.pytest_nvfp4]\nproblems.p = { m = 1e999, n = 1, k = 1 }", "integer"),
        ("[tool.pytest_nvfp4]\nproblems.p = { m = nan, n = 1, k = 1 }", "integer"),
        ("[tool.pytest_nvfp4]\nproblems.p = { m = " + "9" * 4000 + ", n = 1, k = 1 }", "at most 2147483647"),
        ("[tool.pytest_nvfp4]\nproblems.p = { m = -" + "9" * 4000 + ", n = 1, k = 1 }", "at least 0"),
        ("[tool.pytest_nvfp4]\n" + 'cost-tolerance = { a = "' + "9" * 400 + '%" }', "share"),
        ('[[tool.pytest_nvfp4.kernel]]\npath = "[z-a].py"', "glob"),
        ('[[tool.pytest_nvfp4.kernel]]\npath = "' + "**/" * 40 + 'x.py"', "glob"),
        ('[[tool.pytest_nvfp4.kernel]]\npath = "' + "a" * 5000 + '"', "glob"),
    ],
    ids=lambda value: value[:40],
)
def test_settings_that_would_hang_or_crash_are_one_error(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SettingsError, match=words) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "pyproject.toml"))
    assert len(str(caught.value)) < 6000


def test_settings_are_read_from_plain_files_only(tmp_path: Path) -> None:
    with (tmp_path / "pyproject.toml").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(SettingsError, match="3221225472 bytes"):
        load(tmp_path)
    assert find_root(tmp_path / "x") == tmp_path
    (tmp_path / "pyproject.toml").unlink()
    os.mkfifo(tmp_path / "pyproject.toml")
    assert load(tmp_path).file is None
