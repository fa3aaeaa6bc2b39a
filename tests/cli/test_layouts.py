"""``nvfp4 layouts``: every named layout, as text, JSON and Markdown, with its place."""

import json
import re
from pathlib import Path

import pytest

from pytest_nvfp4.cli.options import KernelOptions
from pytest_nvfp4.cli.subject import resolve
from tests.cli.helpers import ROW_MAJOR

LINE = {name: at for at, text in enumerate(ROW_MAJOR.splitlines(), 1) if (name := text.strip().partition(" = ")[0])}


@pytest.mark.usefixtures("in_project")
def test_every_layout_with_its_place(cli) -> None:
    shown = cli("layouts", "row_major.py", "--json")
    assert shown.code == 0, shown.err
    data = json.loads(shown.out)
    rows = {row["name"]: row for row in data["layouts"]}
    tile = rows["kernel.sC"]
    assert tile["canonical"] == "(128,64):(64,1)"
    assert tile["raw"] == '!cute.memref<f16, smem, align<1024>, "(128,64):(64,1)">'
    assert (tile["space"], tile["align"], tile["dtype"]) == ("smem", 1024, "f16")
    assert tile["file"] == "row_major.py"
    source = ROW_MAJOR.splitlines()
    assert "sC = " in source[tile["line"] - 1]
    for name in ("mC", "atom", "copy", "tCgC"):
        assert re.match(rf"\s*{name} = ", source[rows[f"kernel.{name}"]["line"] - 1])
    assert data["ok"] is True
    assert (data["problem"], data["arch"], data["entry"]) == ("gpumode-0", "sm_100a", "row_major.py::build")


@pytest.mark.usefixtures("in_project")
def test_plain_lines_can_be_cut_into_fields(cli) -> None:
    shown = cli("layouts", "row_major.py")
    rows = [line.split("  ") for line in shown.out.splitlines()]
    assert all(len(row) == 6 for row in rows)
    assert next(row[:2] for row in rows if row[0] == "kernel.sC") == ["kernel.sC", "(128,64):(64,1)"]
    assert rows == sorted(rows, key=lambda row: row[0].split("."))


@pytest.mark.usefixtures("in_project")
def test_a_filter_keeps_what_fits(cli) -> None:
    shown = cli("layouts", "row_major.py", "--filter", "*.tC*", "--filter", "kernel.sC", "--json")
    assert {row["name"] for row in json.loads(shown.out)["layouts"]} == {"kernel.tCgC", "kernel.tCsC", "kernel.sC"}
    none = cli("layouts", "row_major.py", "--filter", "nothing*")
    assert none.code == 2
    assert "none of its" in none.err


@pytest.mark.usefixtures("in_project")
def test_markdown_is_one_table_whose_cells_hold_the_text(cli) -> None:
    shown = cli("layouts", "row_major.py", "--md")
    title, blank, *lines = shown.out.strip().splitlines()
    assert title.startswith("## Layouts of ")
    assert not blank
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in lines)
    assert any("`(128,64):(64,1)`" in line for line in lines)


@pytest.mark.usefixtures("in_project")
def test_json_and_markdown_exclude_each_other(cli) -> None:
    assert cli("layouts", "row_major.py", "--md", "--json").code == 2


def test_a_kernel_that_does_not_compile_fails_with_its_own_line(tmp_path, cli) -> None:
    (tmp_path / "broken.py").write_text(ROW_MAJOR.replace("tCgC = copy.get_slice", "tCgC = copy.no_such_method"))
    shown = cli("layouts", tmp_path / "broken.py", "--entry", f"{tmp_path}/broken.py::build", "--json")
    assert shown.code == 1
    assert re.search(r"broken\.py:\d+: error: .*no_such_method", shown.err)
    data = json.loads(shown.out)
    assert data["ok"] is False
    assert "kernel.sC" in {row["name"] for row in data["layouts"]}, "what was seen until then is shown"
    assert data["findings"][0]["file"] == "broken.py"


@pytest.mark.slow
def test_a_kernel_under_a_contract_of_its_own_has_its_first_problem(tmp_path: Path) -> None:
    """As in pytest, also without `problems` in its settings, and with the call as its entry."""
    (tmp_path / "k.py").write_text("import cutlass\n\ndef build():\n    pass\n\ndef call(x):\n    pass\n")
    methods = "".join(f"    def {name}(self, *_):\n        pass\n" for name in ("inputs", "reference"))
    own = "class Own:\n    problems = {'one': {'n': 8}, 'two': {'n': 16}}\n"
    (tmp_path / "contract.py").write_text(own + methods)
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\ncontract = "contract.py::Own"\ncall = "k.py::call"\n'
    for entry, calls in (('entry = "k.py::build"\n', False), ("", True)):
        (tmp_path / "pyproject.toml").write_text(table + entry)
        request = resolve(tmp_path / "k.py", KernelOptions()).request
        assert (request.problem.name, request.calls) == ("one", calls)
        assert request.entry is not None
        assert request.entry.function == ("call" if calls else "build")


def test_the_plugins_option_names_become_this_commands(tmp_path, cli) -> None:
    (tmp_path / "slow.py").write_text("import time\nimport cutlass\n\ndef build():\n    time.sleep(600)\n")
    shown = cli("layouts", tmp_path / "slow.py", "--entry", f"{tmp_path}/slow.py::build", "--timeout", "2")
    assert shown.code == 1
    assert "--timeout" in shown.err
    assert "--nvfp4-" not in shown.err


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_settings_are_those_of_the_kernels_folder(cli) -> None:
    shown = cli("layouts", "row_major.py", "--problem", "mine", "--json")
    assert json.loads(shown.out)["sizes"] == [[64, 128, 256, 1]]
    shape = cli("layouts", "row_major.py", "--shape", "8x128x256,16x128x512", "--json")
    assert json.loads(shape.out)["sizes"] == [[8, 128, 256, 1], [16, 128, 512, 1]]


@pytest.mark.usefixtures("in_project")
def test_the_second_time_nothing_is_compiled(cli) -> None:
    cli("layouts", "row_major.py")
    again = cli("layouts", "row_major.py")
    assert again.err == ""
