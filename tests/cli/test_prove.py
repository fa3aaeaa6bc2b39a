"""``nvfp4 prove``: statements as text, JSON and HTML, the snippet, a kernel's scale factors."""

import ast
import json
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.cli.prove.options import MOST_GROUPS

FOLDER = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm"
KERNEL = FOLDER / "steps" / "map_updates.py"
SHIPPED = FOLDER / "sm100.py"


@pytest.fixture
def solver():
    pytest.importorskip("z3")


@pytest.mark.usefixtures("solver")
def test_the_cta_map_as_json_and_html(cli, tmp_path):
    page = tmp_path / "proof.html"
    done = cli("prove", "cta-indexing", "--groups", "2,5-6", "--json", "--html", page, "--query-timeout", "600000")
    assert done.code == 0, done.out
    data = json.loads(done.out)
    assert data["ok"] is True
    given = next(one for one in data["statements"] if one["name"] == "cta-indexing.given-groups")
    assert "G = 2, 5, 6 groups" in given["words"]
    assert given["checked"] == "6 obligations"
    assert all(one["controls"] for one in data["statements"])
    assert page.read_text().count("<section") == len(data["statements"]) + 1


@pytest.mark.usefixtures("solver")
def test_a_problem_is_mapped_cta_by_cta(cli):
    shape = ("--problem", "gpumode-3", "--shape", "300x256x256,0x128x256")
    done = cli("prove", "cta-indexing", "--groups", "2", *shape, "--brief", "--query-timeout", "600000")
    assert done.code == 0, done.out
    assert "cta-indexing.problem.gpumode-3" in done.out
    assert "has 6 tiles of 128 x 128" in done.out
    assert "measured on a device" in done.out


@pytest.mark.usefixtures("solver")
def test_a_time_limit_fails_the_command(cli, monkeypatch):
    from pytest_nvfp4.proof import catalogue
    from pytest_nvfp4.proof.solver import Questions
    from pytest_nvfp4.proof.statement import Method
    from tests.proof.statements import claim, cubes

    monkeypatch.setattr(catalogue, "cta_claims", lambda *_: (claim(Questions(cubes), method=Method.Z3),))
    done = cli("prove", "cta-indexing", "--query-timeout", "30")
    assert done.code == 1
    assert "UNKNOWN" in done.out
    assert "PROVED" not in done.out


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--require",), 1)])
def test_without_the_solver_only_its_statements_are_unknown(cli, monkeypatch, options, code):
    monkeypatch.setitem(sys.modules, "z3", None)
    done = cli("prove", "cta-indexing", *options)
    assert done.code == code
    assert "UNKNOWN: NEEDS THE EXTRA" in done.out
    assert "pip install 'pytest-nvfp4[proof]'" in done.out
    assert "PROVED (EXHAUSTIVE)" in done.out
    assert "PROVED BY Z3" not in done.out
    assert ("statements that need an extra; --require makes that a failure" in done.out) == (not options)


@pytest.mark.parametrize("search", ["binary", "scan"])
@pytest.mark.parametrize("raster", ["m", "n"])
def test_the_snippet_is_python_with_the_tile_asked_for(cli, monkeypatch, search, raster):
    monkeypatch.setitem(sys.modules, "z3", None)
    done = cli("prove", "cta-indexing", "--emit-snippet", "--tile", "256x64", "--search", search, "--raster", raster)
    assert done.code == 0
    names = [node.name for node in ast.parse(done.out).body if isinstance(node, ast.FunctionDef)]
    assert names == ["tile_table", "find_tile"]
    assert "TILE_M, TILE_N = 256, 64" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prove"], "choose what to prove"),
        (["prove", "--all", "cta-indexing"], "--all takes no subcommand"),
        (["prove", "--query-timeout", "9", "cta-indexing"], "--all takes no subcommand"),
        (["prove", "cta-indexing", "--groups", "0"], "1 to"),
        (["prove", "cta-indexing", "--groups", str(MOST_GROUPS + 1)], "1 to"),
        (["prove", "cta-indexing", "--groups", "many"], "2,4,8"),
        (["prove", "cta-indexing", "--tile", "0x128"], "128x128"),
        (["prove", "cta-indexing", "--emit-snippet", "--json"], "code only"),
        (["prove", "cta-indexing", "--shape", "3x3"], "MxNxK"),
        (["prove", "cta-indexing", "--shape", "10000000x10000000x256"], "more than"),
        (["prove", "scale-factors", "nothing.py"], "no such file"),
        (["prove", "pipeline", "nothing.py"], "no such file"),
    ],
)
def test_wrong_usage_is_named(cli, arguments, says):
    done = cli(*arguments)
    assert done.code == 2
    assert says in done.err


@pytest.mark.slow
def test_scale_factors_of_the_repositorys_kernel(cli):
    pytest.importorskip("cutlass")
    done = cli("prove", "scale-factors", KERNEL, "--static", "--json")
    data = json.loads(done.out)
    judged = {one["name"]: one for one in data["statements"]}
    assert data["missing"] == []
    assert judged["scale-factors.kernel.tmem"]["scope"] == "addresses not followed: it is not simulated (--static)"
    assert judged["scale-factors.cublas-16"]["scope"] is None
    for part in ("gmem", "smem", "tmem", "copy", "load"):
        assert judged[f"scale-factors.kernel.{part}"]["status"] == "proved"
        assert judged[f"scale-factors.kernel.{part}"]["method"] != "z3"


@pytest.mark.slow
def test_addresses_are_followed_and_a_wrong_one_is_refuted(cli, tmp_path):
    pytest.importorskip("cutlass")
    text = KERNEL.read_text()
    wrong = tmp_path / "wrong.py"
    right, shifted = "SFB, tCtSFB[None, None, k_block]", "SFB, tCtSFB[None, None, (k_block + 1) % 4]"
    assert text.count(right) == 1
    wrong.write_text(text.replace(right, shifted))
    line = text[: text.index("cute.gemm(tiled_mma")].count("\n") + 1
    for path, status in ((KERNEL, "proved"), (wrong, "refuted")):
        data = json.loads(cli("prove", "scale-factors", path, "--json").out)
        judged = {one["name"]: one for one in data["statements"]}
        assert judged["scale-factors.addresses.operands"]["status"] == status
        scopes = {one["scope"] for name, one in judged.items() if ".kernel." in name or ".addresses." in name}
        assert scopes == {"addresses followed on 256x256x1024,256x256x1024, every tile"}
    assert f"the MMA at wrong.py:{line} in CTA" in judged["scale-factors.addresses.operands"]["counterexample"]
    assert "SFB reads SFB of group 0, row 0, k 64" in judged["scale-factors.addresses.operands"]["counterexample"]


@pytest.mark.slow
def test_columns_and_scale_factors_of_the_shipped_kernel(cli, tmp_path):
    """Its layouts are bound to no names of the DSL's, so that its addresses are followed."""
    pytest.importorskip("cutlass")
    text = SHIPPED.read_text()
    wrong = tmp_path / "wrong.py"
    right = "SFB_COLUMN = SFA_COLUMN + TILE_K // MMA_K * 4"
    assert text.count(right) == 1
    wrong.write_text(text.replace(right, right.replace("* 4", "* 2")))
    names = ("operands", "columns", "depth", "run")
    for path, ok in ((SHIPPED, True), (wrong, False)):
        data = json.loads(cli("prove", "scale-factors", path, "--json").out)
        judged = {one["name"]: one["status"] for one in data["statements"]}
        assert ({judged[f"scale-factors.addresses.{name}"] for name in names} == {"proved"}) == ok


def test_a_kernel_without_scale_factors_is_not_proved(cli, in_project):
    pytest.importorskip("cutlass")
    done = cli("prove", "scale-factors", in_project / "row_major.py", "--brief", "--static")
    assert done.code == 1
    assert "not claimed: no block-scaled MMA" in done.out


@pytest.mark.slow
@pytest.mark.usefixtures("solver")
def test_everything_and_the_installed_dsls_helpers(cli):
    pytest.importorskip("cutlass")
    done = cli("prove", "--all", "--json", "--query-timeout", "600000")
    assert done.code == 0, done.out
    judged = {one["name"]: one for one in json.loads(done.out)["statements"]}
    assert judged["scale-factors.helpers"]["checked"] == "64 layouts"
    assert judged["scale-factors.helpers"]["method"] == "canonical form"
    assert judged["scale-factors.helpers.gmem"]["checked"] == "2 layouts"


COMMIT = """            with cute.arch.elect_one():
                tcgen05.commit(empty_mbar + stage)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("solver")
def test_the_pipelines_of_the_repositorys_kernel(cli):
    """It is compiled for tiles of 128 and of 256 tokens; the rings of the second differ in rate."""
    pytest.importorskip("cutlass")
    done = cli("prove", "pipeline", SHIPPED, "--json", "--query-timeout", "600000")
    statements = {one["name"]: one for one in json.loads(done.out)["statements"]}
    assert done.code == 1, done.out
    small = {name: one for name, one in statements.items() if ".kernel-0." in name}
    assert {name.rpartition(".")[2] for name in small} == {"not-overwritten", "filled", "no-deadlock"}
    assert {one["status"] for one in (statements["pipeline.runs"], *small.values())} == {"proved"}
    large = {name: one["status"] for name, one in statements.items() if ".kernel-1." in name}
    assert large["pipeline.kernel-1.ring-0.not-overwritten"] == "proved"
    assert {status for name, status in large.items() if name.endswith(".filled")} == {"proved"}
    assert set(large.values()) == {"proved", "unknown"}
    assert all(control["status"] == "refuted" for one in statements.values() for control in one["controls"])


@pytest.mark.slow
@pytest.mark.usefixtures("solver")
def test_a_commit_before_its_mmas_is_refuted_with_both_lines(cli, tmp_path):
    pytest.importorskip("cutlass")
    text = KERNEL.read_text()
    loop = "            for k_block in cutlass.range_constexpr(TILE_K // MMA_K):\n                tiled_mma.set("
    assert text.count(COMMIT) == text.count(loop) == 1
    changed = tmp_path / "early.py"
    changed.write_text(text.replace(COMMIT, "").replace(loop, COMMIT + loop))
    lines = changed.read_text().splitlines()
    copy = next(number for number, line in enumerate(lines, 1) if "cute.copy(tma_atom_a, tAgA" in line)
    read = next(number for number, line in enumerate(lines, 1) if "cute.copy(s2t_sfa, tSsSFA" in line)
    shapes = [part for k in (256, 1280, 2304) for part in ("--problem", f"128x128x{k}")]
    done = cli("prove", "pipeline", changed, *shapes, "--json")
    assert done.code == 1
    (refuted,) = [one for one in json.loads(done.out)["statements"] if one["status"] == "refuted"]
    assert refuted["name"] == "pipeline.ring-0.not-overwritten"
    assert refuted["counterexample"].startswith("N = 4 ")
    assert f"early.py:{copy} " in refuted["counterexample"]
    assert f"early.py:{read} " in refuted["counterexample"]


@pytest.mark.slow
@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize(("structure", "rings", "undecided"), [("persistent", 2, 2), ("two_cta", 1, 0)])
def test_the_pipelines_of_other_structures(cli, structure, rings, undecided):
    """Nothing is refuted; the rings of a persistent kernel differ in rate, so deadlocks across them are unknown."""
    pytest.importorskip("cutlass")
    kernel = Path(__file__).parents[1] / "sim" / "mutants" / "structures" / f"{structure}.py"
    done = cli("prove", "pipeline", kernel, "--json", "--query-timeout", "600000")
    statements = json.loads(done.out)["statements"]
    assert len(statements) == 1 + 3 * rings
    assert sum(one["status"] == "proved" for one in statements) == len(statements) - undecided
    assert {one["name"].rpartition(".")[2] for one in statements if one["status"] == "unknown"} <= {"no-deadlock"}
