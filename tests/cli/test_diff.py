"""``nvfp4 diff``: kernels, snapshots, git revisions; what gates, and how it is shown."""

import json
import os
from pathlib import Path

import pytest

from pytest_nvfp4.layout.listing import Listing
from tests.cli.helpers import COLUMN_MAJOR, ROW_MAJOR, SKEWED, git


def _snapshot(path, pairs, **header):
    path.write_text(Listing.from_pairs({"kernel": "k.py", **header}, pairs.items()).render())
    return path


A = {"k.sA": '!cute.layout<"(8,4):(4,1)">', "k.sB": '!cute.layout<"(4,8):(1,4)">'}


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_the_same_kernel_is_the_same(cli) -> None:
    shown = cli("diff", "row_major.py", "row_major.py")
    assert shown.code == 0
    assert "0 failed" not in shown.out
    assert "identical" in shown.out


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_another_stride_is_a_difference(cli) -> None:
    shown = cli("diff", "row_major.py", "skewed.py", "--json")
    assert shown.code == 1
    data = json.loads(shown.out)
    layouts = next(check for check in data["checks"] if "layouts" in check["check"])
    change = next(one for one in layouts["diff"]["changes"] if one["name"] == "kernel.sC")
    assert change["severity"] in {"permuted", "different"}
    assert data["old"]["trace"]["problem"] == data["new"]["trace"]["problem"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_launch_facts_are_compared_and_gate_only_when_asked(cli) -> None:
    shown = cli("diff", "row_major.py", "padded.py", "--json")
    assert shown.code == 0
    facts = {fact["name"]: fact for check in json.loads(shown.out)["checks"] for fact in check["facts"]}
    assert facts["launch.0.smem_bytes"]["old"] == "16384"
    assert facts["launch.0.smem_bytes"]["new"] == "17408"
    assert facts["launch.0.smem_bytes"]["costs"] is True
    assert cli("diff", "row_major.py", "padded.py", "--fail-on-launch").code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_opcodes_are_compared_on_demand(cli) -> None:
    def names(*options):
        data = json.loads(cli("diff", "row_major.py", "column_major.py", "--json", *options).out)
        return {fact["name"] for check in data["checks"] for fact in check["facts"]}

    assert not any(".ptx." in name for name in names())
    assert any(".ptx." in name for name in names("--opcodes"))


@pytest.mark.parametrize(
    ("new", "options", "code"),
    [
        (A, [], 0),
        ({**A, "k.sA": '!cute.layout<"((4,2),4):((4,16),1)">'}, [], 0),  # renested
        ({**A, "k.sA": '!cute.layout<"((4,2),4):((4,16),1)">'}, ["--fail-on", "renested"], 1),
        ({**A, "k.sA": '!cute.layout<"((4,2),4):((4,16),1)">'}, ["--protected", "k.sA"], 1),
        ({**A, "k.sA": '!cute.layout<"((4,2),4):((4,16),1)">'}, ["--protected", "*.sB"], 0),
        ({**A, "k.sA": '!cute.layout<"(4,8):(1,4)">'}, [], 1),  # permuted
        ({**A, "k.sA": '!cute.layout<"(4,8):(1,4)">'}, ["--fail-on", "different"], 0),
        ({**A, "k.sA": '!cute.layout<"(8,4):(8,2)">'}, ["--fail-on", "different"], 1),
        ({"k.sA": A["k.sA"]}, [], 1),  # a layout is gone
        ({**A, "k.sC": '!cute.layout<"4:1">'}, [], 0),  # one is new
    ],
)
def test_what_gates(new, options, code, tmp_path, cli) -> None:
    old = _snapshot(tmp_path / "old.txt", A)
    assert cli("diff", old, _snapshot(tmp_path / "new.txt", new), *options).code == code


def test_severity_names_may_be_written_in_any_way(tmp_path, cli) -> None:
    old = _snapshot(tmp_path / "old.txt", A)
    for name in ("same-function", "SAME_FUNCTION", "Same function"):
        assert cli("diff", old, old, "--fail-on", name).code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_a_snapshot_against_a_kernel(cli, tmp_path) -> None:
    raw = json.loads(cli("layouts", "row_major.py", "--json").out)["layouts"]
    snapshot = _snapshot(tmp_path / "s.txt", {row["name"]: row["raw"] for row in raw}, dsl="4.4.0")
    shown = cli("diff", snapshot, "row_major.py")
    assert shown.code == 0
    assert "dsl 4.4.0 -> " in shown.out
    assert cli("diff", snapshot, "skewed.py").code == 1


def test_launch_snapshots_can_be_compared_too(tmp_path, cli) -> None:
    for name, registers in (("a", 40), ("b", 48)):
        (tmp_path / f"{name}.txt").write_text(
            f"# nvfp4-codegen 1\n# dsl  4.8.1\n\ncode.0.registers  {registers}\n# end 1\n"
        )
    shown = cli("diff", tmp_path / "a.txt", tmp_path / "b.txt")
    assert shown.code == 0
    assert "code.0.registers 40 -> 48 (+8, +20.0 %)" in shown.out
    assert cli("diff", tmp_path / "a.txt", tmp_path / "b.txt", "--fail-on-launch").code == 1
    other = cli("diff", tmp_path / "a.txt", _snapshot(tmp_path / "c.txt", A))
    assert other.code == 2
    assert "snapshots of different kinds" in other.err


@pytest.mark.slow
def test_settings_protect_a_layout(tmp_path, cli, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(ROW_MAJOR)
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nentry = "k.py::build"\nprotected = ["kernel.sC"]\n'
    )
    raw = json.loads(cli("layouts", "k.py", "--json").out)["layouts"]
    pairs = {row["name"]: row["raw"] for row in raw}
    pairs["kernel.sC"] = '!cute.memref<f16, smem, align<1024>, "((64,2),64):((64,4096),1)">'
    shown = cli("diff", _snapshot(tmp_path / "s.txt", pairs), "k.py")
    assert shown.code == 1
    assert "[protected]" in shown.out


@pytest.mark.usefixtures("in_project")
def test_markdown_and_html(cli, tmp_path) -> None:
    page = tmp_path / "a page.html"
    shown = cli("diff", "row_major.py", "skewed.py", "--md", "--html", page)
    assert shown.code == 1
    assert shown.out.startswith("## ❌")
    assert "kernel.sC" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert [path.name for path in tmp_path.iterdir()] == ["a page.html"], "nothing is left beside it"
    assert cli("diff", "row_major.py", "row_major.py", "--md", "--json").code == 2


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_a_kernel_that_does_not_compile_is_said_and_fails(cli, tmp_path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(ROW_MAJOR.replace("def build():", "def build():\n    raise ValueError('no')"))
    shown = cli("diff", "row_major.py", broken, "--entry", f"{broken}::build")
    assert shown.code == 1
    assert "did not compile" in shown.out
    assert "ValueError: no" in shown.out
    assert "layouts against" not in shown.out, "nothing is said of layouts that were never made"


def _make_repository(folder):
    """Two commits of a kernel in a package that imports its neighbour."""
    top = folder / "repo with space"
    package = top / "kernels" / "gemm"
    package.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=top)
    neighbour = "import cutlass.cute as cute\n\n\ndef strides(columns):\n    return ({})\n"
    text = ROW_MAJOR.replace("import cutlass\n", "import cutlass\nfrom neighbour import strides\n", 1)
    text = text.replace("stride=(COLUMNS, 1)), byte", "stride=strides(COLUMNS)), byte")
    (package / "kernel.py").write_text(text)
    (package / "neighbour.py").write_text(neighbour.format("columns, 1"))
    (top / "pyproject.toml").write_text(
        '[[tool.pytest_nvfp4.kernel]]\npath = "kernels/gemm/kernel.py"\nentry = "kernels/gemm/kernel.py::build"\n'
    )
    _snapshot(top / "snap.txt", A)
    git("add", ".", cwd=top)
    git("commit", "-q", "-m", "first", cwd=top)
    git("tag", "first", cwd=top)
    (package / "neighbour.py").write_text(neighbour.format("columns + 8, 1"))
    _snapshot(top / "snap.txt", {**A, "k.sA": '!cute.layout<"(8,4):(8,2)">'})
    git("commit", "-q", "-a", "-m", "second", cwd=top)
    return top


@pytest.fixture(scope="module")
def shared_repository(tmp_path_factory):
    """A repository that tests only read, so that its kernels are compiled once."""
    return _make_repository(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def repository(shared_repository, monkeypatch):
    """The shared repository as the working folder."""
    monkeypatch.chdir(shared_repository)
    return shared_repository


@pytest.fixture
def own_repository(tmp_path, monkeypatch):
    """A repository that the test may change, as the working folder."""
    top = _make_repository(tmp_path)
    monkeypatch.chdir(top)
    return top


KERNEL = "kernels/gemm/kernel.py"


@pytest.mark.slow
def test_a_revision_brings_its_own_neighbours(repository, cli, cache_folder) -> None:
    same = cli("diff", f"HEAD:{KERNEL}", KERNEL)
    assert same.code == 0, same.out + same.err
    shown = cli("diff", f"first:{KERNEL}", KERNEL, "--json")
    assert shown.code == 1, shown.err
    data = json.loads(shown.out)
    layouts = next(check for check in data["checks"] if "layouts" in check["check"])
    assert {change["name"] for change in layouts["diff"]["changes"]} >= {"kernel.sC"}
    assert data["old"]["trace"]["kernel"] == KERNEL, "no path of the extracted tree is shown"
    assert not [path for path in (cache_folder / "revisions").iterdir() if path.is_dir()], "the tree is removed"
    assert git("status", "--porcelain", cwd=repository) == ""


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_a_revisions_trace_is_found_again(cli) -> None:
    cli("diff", f"first:{KERNEL}", KERNEL)
    again = cli("diff", f"first:{KERNEL}", KERNEL)
    assert "compiling" not in again.err


@pytest.mark.usefixtures("repository")
def test_a_revision_of_a_snapshot(cli) -> None:
    assert cli("diff", "HEAD:snap.txt", "snap.txt").code == 0
    assert cli("diff", "HEAD~1:snap.txt", "snap.txt").code == 1
    assert cli("diff", "main@{0}:snap.txt", "snap.txt").code == 0


@pytest.mark.slow
def test_a_path_may_start_at_the_working_folder(repository, cli, monkeypatch) -> None:
    monkeypatch.chdir(repository / "kernels" / "gemm")
    assert cli("diff", "HEAD:kernel.py", "HEAD:./kernel.py").code == 0
    assert cli("diff", "HEAD:../../snap.txt", "HEAD:snap.txt").code == 0


def test_a_file_that_exists_is_meant_before_a_revision(own_repository, cli) -> None:
    _snapshot(own_repository / "HEAD:snap.txt", {**A, "k.sA": '!cute.layout<"2:1">'})
    assert cli("diff", "HEAD:snap.txt", "snap.txt").code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing:snap.txt", "has no revision 'nothing'"),
        ("HEAD:none.py", "has no file 'none.py'"),
        ("HEAD:kernels", "is a folder in revision HEAD"),
        ("HEAD:../outside.py", "has no file"),
        ("HEAD:/etc/passwd", "has no file"),
        ("HEAD:", "not REV:path"),
        (":snap.txt", "not REV:path"),
        ("--help:snap.txt", "a revision cannot start with a dash"),
        ("HEAD; touch pwned:snap.txt", "has no revision"),
        ("$(touch pwned):snap.txt", "has no revision"),
        ("none.txt", "no such file, and not REV:path"),
    ],
)
def test_a_revision_that_is_none(text, words, repository, cli) -> None:
    shown = cli("diff", "--", text, "snap.txt")
    assert shown.code == 2
    assert words in shown.err.splitlines()[-1]
    assert not (repository / "pwned").exists()


def test_outside_a_repository_that_is_said(tmp_path, cli, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _snapshot(tmp_path / "snap.txt", A)
    shown = cli("diff", "HEAD:snap.txt", "snap.txt")
    assert shown.code == 2
    assert "is not in a git repository" in shown.err


@pytest.mark.usefixtures("repository")
def test_without_git_that_is_said(cli, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    shown = cli("diff", "HEAD:snap.txt", "snap.txt")
    assert shown.code == 2
    assert "git is not installed" in shown.err


@pytest.mark.slow
def test_a_file_that_archives_leave_out_is_said(own_repository, cli) -> None:
    (own_repository / ".gitattributes").write_text("kernels export-ignore\n")
    git("add", ".", cwd=own_repository)
    git("commit", "-q", "-m", "third", cwd=own_repository)
    shown = cli("diff", f"HEAD:{KERNEL}", KERNEL)
    assert shown.code == 2
    assert "export-ignore" in shown.err


def test_the_kernels_differ_only_where_they_are_meant_to() -> None:
    assert ROW_MAJOR != COLUMN_MAJOR != SKEWED


@pytest.mark.slow
def test_the_bundle_of_a_revision_outlives_its_tree(own_repository, cli) -> None:
    path = own_repository / KERNEL
    good = path.read_text()
    path.write_text(good.replace("def build():", "def build():\n    raise ValueError('no')"))
    git("commit", "-q", "-a", "-m", "broken", cwd=own_repository)
    path.write_text(good)
    shown = cli("diff", f"HEAD:{KERNEL}", KERNEL)
    assert shown.code == 1
    place = next(line for line in shown.out.splitlines() if "a debug bundle is in" in line).partition(" is in ")[2]
    assert place.startswith(str(own_repository))
    assert "ValueError: no" in (Path(place) / "summary.json").read_text()
    assert git("status", "--porcelain", "--", ".nvfp4", cwd=own_repository) == ""
