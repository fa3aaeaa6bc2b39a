"""Hostile input: each gives one line that names the file and the way out, exit code 2, and no traceback."""

import os

import pytest

from tests.cli.helpers import KERNEL, ROW_MAJOR

KERNEL_COMMANDS = ("layouts", "insights", "compile", "ptx", "sass", "bench-self")


def _bad_file(folder, kind):
    """A file that can be no kernel, and words of the error it must give."""
    path = folder / f"{kind}.py"
    match kind:
        case "missing":
            return path, "no such file"
        case "dangling":
            path.symlink_to(folder / "nowhere.py")
            return path, "no such file"
        case "folder":
            path.mkdir()
            return path, "is a folder"
        case "pipe":
            os.mkfifo(path)
            return path, "is not a Python file"
        case "binary":
            path.write_bytes(b"\x7fELF\0\0\0")
            return path, "NUL bytes"
        case "latin":
            path.write_bytes(b"x = '\xe9'\n")
            return path, "is not valid Python"
        case "syntax":
            path.write_text("def f(:\n")
            return path, "py:1: is not valid Python: SyntaxError"
        case "kernel with a syntax error":
            path.write_text(KERNEL.replace("def host(c:", "def host(c::"))
            return path, "is not valid Python"
        case "other language":
            path = folder / "kernel.cu"
            path.write_text("__global__ void f() {}")
            return path, "is not a Python file"
        case "no kernel":
            path.write_text("x = 1\n")
            return path, "defines no custom_kernel"
        case "no entry":
            path.write_text(ROW_MAJOR)
            return path, "--entry FUNCTION"
        case "deep":
            path.write_text("x = " + "(" * 5000 + ")" * 5000)
            return path, "is not valid Python"
    raise AssertionError(kind)


BAD = (
    "missing",
    "dangling",
    "folder",
    "pipe",
    "binary",
    "latin",
    "syntax",
    "kernel with a syntax error",
    "other language",
    "no kernel",
    "no entry",
    "deep",
)


def check_one_line(result, *words):
    assert result.code == 2, result
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("nvfp4: error: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("command", KERNEL_COMMANDS)
def test_a_file_that_is_no_kernel(kind, command, tmp_path, cli) -> None:
    path, words = _bad_file(tmp_path, kind)
    more = ("--only", "processes") if command == "bench-self" else ()
    check_one_line(cli(command, path, *more), path.name, words)


@pytest.mark.parametrize("kind", BAD)
def test_a_side_of_a_diff_that_is_no_kernel(kind, tmp_path, cli, project, monkeypatch) -> None:
    path, words = _bad_file(tmp_path, kind)
    monkeypatch.chdir(tmp_path)
    words = {"other language": "is not a layout snapshot", "pipe": "is not a regular file"}.get(kind, words)
    for sides in ((path, project / "row_major.py"), (project / "row_major.py", path)):
        result = cli("diff", *sides)
        assert result.code == 2
        assert result.out == ""
        last = result.err.splitlines()[-1]
        assert last.startswith("nvfp4: error: ")
        assert words in last
        assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a layout snapshot"),
        (b"\xff\xfe\0", "not UTF-8 text"),
        (b"# nvfp4-layouts 1\n\0", "NUL bytes"),
        (b"hello\n", "its first line is 'hello'"),
        (b"# nvfp4-layouts 1\n# kernel  k.py\n\na  4:1  =  -  -\n", "line 4"),
        (b"# nvfp4-layouts 1\n\n<<<<<<< HEAD\n# end 0\n", "merge conflict"),
        (
            b'# nvfp4-layouts 1\n\na  8:1  !cute.layout<"(2,2):(1,2)">  -  -\n# end 1\n',
            "does not follow from its raw type",
        ),
        (b"# nvfp4-layouts 9\n\n# end 0\n", "line 1"),
        (b"# nvfp4-launch 1\n\nlaunches  1\n", "part of it is missing"),
        (b"# nvfp4-codegen 1\n\nlaunches  1\n# end 2\n", "counts 2 facts"),
    ],
)
def test_a_damaged_snapshot(command, content, words, tmp_path, cli) -> None:
    path = tmp_path / "snapshot.txt"
    path.write_bytes(content)
    check_one_line(cli("snapshot", command, path), "snapshot.txt", words)
    check_one_line(cli("diff", path, path), "snapshot.txt", words)


def test_a_snapshot_that_is_not_there(tmp_path, cli) -> None:
    for command in ("show", "check"):
        check_one_line(cli("snapshot", command, tmp_path / "none.txt"), "no such file")
    check_one_line(cli("snapshot", "show", tmp_path), "is a folder")
    check_one_line(cli("snapshot", "check", tmp_path), "has no snapshots")


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path, cli) -> None:
    result = cli("layouts", tmp_path / "evil\x1b[2J\nname.py")
    check_one_line(result, "evil\\x1b[2J\\nname.py" if "\\n" in result.err else "evil\\x1b[2J name.py")
    assert "\x1b" not in result.err


@pytest.mark.parametrize("command", [("run", "--problem"), ("layouts", "--shape"), ("cost", "--problem")])
def test_a_problem_outside_the_contract_is_no_fault_of_the_kernel(tmp_path, cli, command) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text("import cutlass\n\ndef custom_kernel(data):\n    raise ValueError\n")
    check_one_line(cli(command[0], kernel, command[1], "128x128x264"), "group 0 (128x128x264): k must be a multiple of")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--problem", "nothing"], "no problem is called 'nothing'"),
        (["--problem", "gpumode"], "names 10 problems"),
        (["--shape", "96x128"], "is not MxNxK"),
        (["--shape", "1x2x3", "--problem", "mine"], "give one of them"),
        (["--entry", "row_major.py"], "is not FILE::FUNCTION"),
        (["--entry", "row_major.py::"], "is not FILE::FUNCTION"),
        (["--entry", "none.py::build"], "does not exist"),
        (["--config", "2cta"], "no configuration is called '2cta'; it has one, without a name: leave out --config"),
    ],
)
@pytest.mark.usefixtures("in_project")
def test_options_that_do_not_fit(options, words, cli) -> None:
    check_one_line(cli("layouts", "row_major.py", *options), words)


@pytest.mark.usefixtures("in_project")
def test_an_architecture_that_is_none(cli) -> None:
    for command in (["layouts", "row_major.py"], ["doctor", "--no-probe"]):
        result = cli(*command, "--arch", "banana")
        assert result.code == 2
        assert "'banana' is not an architecture" in result.err


@pytest.mark.usefixtures("in_project")
def test_an_architecture_that_the_dsl_does_not_know(cli) -> None:
    result = cli("compile", "row_major.py", "--arch", "sm_12")
    assert result.code == 1
    assert "CuTe DSL does not support architecture 'sm_12'" in result.err
    assert "a B200 is sm_100a" in result.err
    assert "sm_90a, sm_100, " in result.err, "what it knows"


@pytest.mark.usefixtures("in_project")
def test_a_compile_option_that_the_dsl_does_not_know(cli) -> None:
    result = cli("compile", "row_major.py", "--compile-option", "--nonsense 3")
    assert result.code == 1
    assert "--nonsense" in result.err
    assert "options.py" not in result.err, "a line of this package is no place to look at"
    assert "x1b" not in result.err, "the DSL's colours are dropped, not spelled out"


def test_settings_that_cannot_be_used(tmp_path, cli) -> None:
    (tmp_path / "kernel.py").write_text(ROW_MAJOR)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest_nvfp4]\narchitecture = 'sm_100a'\n")
    check_one_line(cli("layouts", tmp_path / "kernel.py"), "pyproject.toml", "unknown key 'architecture'")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest_nvfp4\n")
    check_one_line(cli("layouts", tmp_path / "kernel.py"), "cannot be read as TOML")


def test_several_configurations_have_to_be_told_apart(tmp_path, cli) -> None:
    (tmp_path / "kernel.py").write_text(ROW_MAJOR)
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "kernel.py"\nname = "{}"\nentry = "kernel.py::build"\n'
    (tmp_path / "pyproject.toml").write_text(table.format("one") + table.format("two"))
    check_one_line(cli("layouts", tmp_path / "kernel.py"), "2 configurations", "'one', 'two'", "--config")


@pytest.mark.usefixtures("in_project")
def test_results_that_cannot_be_written(cli, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    result = cli("compile", "row_major.py", "--out", tmp_path / "file" / "below")
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("nvfp4: error: ")
    result = cli("diff", "row_major.py", "row_major.py", "--html", tmp_path / "file" / "page.html")
    assert result.code == 2
    assert "page.html cannot be written" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with space, it's.py", "HEAD:a.py", "-dash-ünïcode.py"])
def test_unusual_names_are_fine(name, tmp_path, cli, monkeypatch) -> None:
    (tmp_path / name).write_text(ROW_MAJOR)
    monkeypatch.chdir(tmp_path)
    shown = cli("diff", "--entry", "build", "--json", "--", name, name)
    assert shown.code == 0, shown.err
    assert f'"label": "{name}"' in shown.out
