"""``nvfp4 compile``, ``ptx`` and ``sass``: what is shown, and the files with their names."""

import hashlib
import json
import subprocess

import pytest

from pytest_nvfp4.cli.artifacts import Module, chosen, modules, write
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.toolchain import binaries
from tests.cli.helpers import ROW_MAJOR, traced


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_the_artifacts_have_names_that_stay(cli, tmp_path) -> None:
    out = tmp_path / "a" / "b"
    shown = cli("compile", "row_major.py", "--out", out, "--json")
    assert shown.code == 0, shown.err
    assert {path.name for path in out.iterdir()} == {
        "row_major.kernel.ptx",
        "row_major.kernel.cubin",
        "row_major.kernel.sass",
        "row_major.kernel.mlir",
        "manifest.json",
    }
    assert ".target sm_100a" in (out / "row_major.kernel.ptx").read_text().replace("\t", " ")
    assert (out / "row_major.kernel.cubin").read_bytes()[:4] == b"\x7fELF"
    manifest = json.loads((out / "manifest.json").read_text())
    for entry in manifest["artifacts"]:
        assert hashlib.sha256((out / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]
        assert entry["kernels"][0] == "kernel"
    data = json.loads(shown.out)
    assert data["code"][0]["registers"] > 0
    assert data["launches"][0]["grid"] == [4, 1, 1]
    assert data["seconds"] > 0


@pytest.mark.usefixtures("in_project")
def test_the_summary_says_what_matters(cli) -> None:
    shown = cli("compile", "row_major.py")
    assert shown.code == 0
    for words in (
        "registers ",
        "spills        0 stores, 0 loads",
        "TMEM columns  none",
        "grid 4x1x1, block 128x1x1",
        "SASS",
    ):
        assert words in shown.out


@pytest.mark.usefixtures("in_project")
def test_registers_are_what_cuobjdump_says(cli, tmp_path) -> None:
    shown = cli("compile", "row_major.py", "--out", tmp_path, "--json")
    tool = binaries.find("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is not installed")
    text = subprocess.run(
        [tool, "--dump-resource-usage", tmp_path / "row_major.kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    assert f"REG:{json.loads(shown.out)['code'][0]['registers']} " in text


@pytest.mark.usefixtures("in_project")
def test_ptx_and_sass_go_to_standard_output(cli, tmp_path) -> None:
    ptx, sass = cli("ptx", "row_major.py"), cli("sass", "row_major.py")
    assert ".visible .entry" in ptx.out
    assert "EXIT" in sass.out
    cli("ptx", "row_major.py", "--out", tmp_path)
    assert (tmp_path / "row_major.kernel.ptx").read_text() == ptx.out
    assert not (tmp_path / "row_major.kernel.sass").exists()
    assert json.loads(cli("ptx", "row_major.py", "--json").out)["ptx"] == {"kernel": ptx.out}


@pytest.mark.usefixtures("in_project")
def test_one_kernel_of_several_can_be_asked_for(cli) -> None:
    for name in ("kernel", "ker*", "kernel_cutlass_*"):
        assert ".entry" in cli("ptx", "row_major.py", "--kernel", name).out
    none = cli("ptx", "row_major.py", "--kernel", "other")
    assert none.code == 2
    assert "compiled no kernel 'other'; its kernels are kernel" in none.err


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_fails(cli, tmp_path) -> None:
    (tmp_path / "k.py").write_text(ROW_MAJOR.replace("    cute.copy(copy, tCsC, tCgC)", "    cute.copy(copy, tCsC)"))
    shown = cli("compile", tmp_path / "k.py", "--entry", "build", "--out", tmp_path / "out")
    assert shown.code == 1
    assert "did not compile" in shown.out
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["artifacts"] == []


def _module(folder, name, text):
    path = folder / f"{name}.source"
    path.write_text(text)
    return Module(name=name, functions=(name,), files={"ptx": path})


def test_code_of_an_older_compile_does_not_stay(tmp_path) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    source.mkdir()
    kernel = traced(tmp_path / "k.py", {})
    write(kernel, [_module(source, "one", "1"), _module(source, "two", "2")], ["ptx"], out)
    (out / "mine.txt").write_text("keep")
    (out / "other.one.ptx").write_text("keep")
    write(kernel, [_module(source, "two", "3")], ["ptx"], out)
    assert sorted(path.name for path in out.iterdir()) == ["k.two.ptx", "manifest.json", "mine.txt", "other.one.ptx"]
    assert (out / "k.two.ptx").read_text() == "3"


def test_a_forged_manifest_removes_nothing_else(tmp_path) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    source.mkdir()
    out.mkdir()
    victim = tmp_path / "victim.ptx"
    victim.write_text("keep")
    names = ["../victim.ptx", "k.x/../../victim.ptx", str(victim), "mine.txt"]
    (out / "mine.txt").write_text("keep")
    (out / "manifest.json").write_text(json.dumps({"file": "k", "artifacts": [{"name": name} for name in names]}))
    write(traced(tmp_path / "k.py", {}), [_module(source, "one", "1")], ["ptx"], out)
    assert victim.read_text() == "keep"
    assert (out / "mine.txt").read_text() == "keep"


def test_modules_of_one_name_are_told_apart_by_number(tmp_path) -> None:
    entry = ".visible .entry {}()\n{{\nret;\n}}\n"
    names = ("kernel_cutlass_f_0", "kernel_cutlass_f_1", "kernel_cutlass_g_0")
    code = traced(tmp_path / "k.py", {}).trace.code[0]
    codes = tuple(code.model_copy(update={"symbol": name, "source_name": name.split("_")[2]}) for name in names)
    artifacts = []
    for at, name in enumerate(names):
        (tmp_path / f"{at}.ptx").write_text(entry.format(name) + "\0")
        artifacts.append({"kind": "ptx", "name": f"{at}.ptx", "sha256": "0" * 64})
    found = traced(tmp_path / "k.py", {}).trace
    trace = type(found).model_validate(
        {**found.model_dump(), "code": codes, "artifacts": artifacts, "folder": str(tmp_path)}
    )
    split = modules(trace)
    assert [module.name for module in split] == ["f.0", "f.1", "g"]
    assert [module.name for module in chosen(split, "f", label="k.py")] == ["f.0", "f.1"]
    with pytest.raises(InputError, match="no kernel 'h'"):
        chosen(split, "h", label="k.py")
    write(traced(tmp_path / "k.py", {}), split, ["ptx"], tmp_path / "out")
    assert (tmp_path / "out" / "k.g.ptx").read_text() == entry.format(names[2]), "the DSL's NUL byte is dropped"
