"""``nvfp4 tmem``, ``nvfp4 tmem-pack`` and ``nvfp4 epilogue``."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.cli.tmem.columns import _kernel_rows
from pytest_nvfp4.tmem.judge import judge
from pytest_nvfp4.tmem.usage import usage
from tests.cli.helpers import ROOT, Result

Cli = Callable[..., Result]
SHIPPED = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the shipped kernel that allocate too little and too much."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("copies")
    for name, columns in (("little", 128), ("much", 512)):
        text = re.sub(r"(?m)^TMEM_COLUMNS = .*$", f"TMEM_COLUMNS = {columns}", SHIPPED.read_text())
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_tile_is_shown_for_all_stages_that_make_sense(cli: Cli) -> None:
    done = cli("tmem", "--tile", "128,128,256", "--csv")
    assert done.code == 0
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["stages"], row["total"], row["allocate"], row["slack"]) for row in rows] == [
        ("1", "160", "256", "96"),
        ("2", "288", "512", "224"),
        ("3", "416", "512", "96"),
        ("4", "544", "", "-32"),
    ]
    assert {row["known_by"] for row in rows} == {"formula"}


def test_a_pair_of_ctas_holds_all_of_sfb_in_each(cli: Cli) -> None:
    done = cli("tmem", "--tile", "256,256,256", "--ctas", "2", "--stages", "1", "--json")
    (row,) = json.loads(done.out)["rows"]
    assert (row["acc"], row["sfa"], row["sfb"], row["allocate"]) == (256, 16, 32, 512)


@pytest.mark.slow
def test_formula_and_layouts_agree_for_a_tile(cli: Cli) -> None:
    pytest.importorskip("cutlass")
    done = cli("tmem", "--tile", "128,192,256", "--stages", "2", "--trace")
    assert done.code == 0, done.err
    formula, layouts = (line.split() for line in done.out.splitlines()[1:])
    assert formula[:-1] == layouts[:-1]
    assert (formula[-1], layouts[-1]) == ("formula", "layouts")


@pytest.mark.slow
def test_a_kernel_is_counted_both_ways(cli: Cli) -> None:
    pytest.importorskip("torch")
    done = cli("tmem", SHIPPED, "--json")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["tmem"]
    assert (found["allocated"], found["used"], found["allocation"], found["agree"]) == ([256], 160, 256, True)
    assert found["formula"] == {"stage": 128, "stages": 1, "sfa": 16, "sfb": 16}
    assert (found["errors"], found["notes"]) == ([], [])


@pytest.mark.slow
def test_too_little_is_an_error_and_too_much_a_note(cli: Cli, copies: Path) -> None:
    little, much = (cli("tmem", copies / f"{name}.py") for name in ("little", "much"))
    assert little.code == 1
    assert "error: it uses acc 128 + SFA 16 + SFB 16 = 160" in little.out
    assert much.code == 0
    assert "note: it allocates 512 columns" in much.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tmem",), "give either"),
        (("tmem", "k.py", "--tile", "128,128,256"), "give either"),
        (("tmem", "--tile", "128,128"), "is not M,N,K"),
        (("tmem", "--tile", "100,128,256"), "multiple of 128"),
        (("tmem", "--tile", "128,128,256", "--json", "--csv"), "name different formats"),
        (("tmem-pack",), "give either"),
        (("tmem-pack", "--accumulator", "acc"), "--accumulator 'acc' is not NAME:COLUMNS"),
        (("tmem-pack", "--accumulator", "a:8", "--segment", "b"), "--segment 'b' is not NAME:COLUMNS"),
        (("tmem-pack", "--accumulator", "a:8", "--accumulator", "b:8"), "their number by --stages"),
        (("tmem-pack", "--accumulator", "acc:600"), "1 to 512"),
        (("tmem-pack", "--accumulator", "a:8", "--segment", "a:8"), "the same name"),
        (("epilogue",), "give either"),
        (("epilogue", "--tile", "256,128"), "M must be 128"),
        (("epilogue", "--tile", "128,100"), "multiple of 8"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert words in done.err


def test_the_best_packing_is_shown_with_its_proof(cli: Cli) -> None:
    done = cli("tmem-pack", "--tile", "128,256,256")
    assert done.code == 0
    assert (
        "best: 2 accumulators, the most overlap 64 columns; 496 columns used, 16 of 512 free; allocate 512" in done.out
    )
    assert "proved (exhaustive, 44 phases): no two live segments overlap in any phase" in done.out
    assert "192..447  acc1" in done.out


def test_a_lead_is_told_of_all_subtiles_that_could_be_unread(cli: Cli) -> None:
    """Four accumulators of four subtiles: those of three earlier tiles, as many as ``leads`` has without an overlap."""
    rows = [line.split() for line in cli("tmem-pack", "--tile", "128,128,256", "--stages", "4").out.splitlines()]
    assert {row[0]: row[5] for row in rows if row and row[0] in ("0,0,0", "0,0,32")} == {
        "0,0,0": "12/12",
        "0,0,32": "7/12",
    }


def test_packings_as_json_say_what_was_tried(cli: Cli) -> None:
    done = cli("tmem-pack", "--tile", "128,128,256", "--stages", "4", "--json")
    document = json.loads(done.out)
    best = document["best"]
    assert document["method"] == "exhaustive"
    assert document["tried"] >= len(document["packings"])
    assert best["disjoint"] == {
        "proved": True,
        "method": "exhaustive",
        "phases": best["disjoint"]["phases"],
        "clash": None,
    }
    assert (best["used"], best["leads"]) == (512, [12, 7, 12, 7])


def test_segments_of_ones_own_and_less_room(cli: Cli) -> None:
    fits = cli(
        "tmem-pack", "--accumulator", "D:96", "--segment", "S:32:32", "--stages", "2", "--capacity", "256", "--json"
    )
    assert json.loads(fits.out)["best"]["allocation"] == 256
    none = cli("tmem-pack", "--accumulator", "D:96", "--segment", "S:200", "--stages", "1", "--capacity", "256")
    assert none.code == 1
    assert "nothing fits 256 columns" in none.out


@pytest.mark.slow
def test_a_kernels_own_epilogue_stands_in_the_ranking(cli: Cli) -> None:
    pytest.importorskip("torch")
    done = cli("epilogue", SHIPPED, "--json", "--top-k", "3")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    *first, own = document["ranked"]
    assert [way["rank"] for way in first] == [1, 2, 3]
    assert own["own"]
    assert own["rank"] == document["own"]["rank"] > 3
    # Its stores are of 32 bytes (st.global.v4.b64), by its machine code.
    assert (own["sector_efficiency"], own["bytes_a_lane"], own["path"]) == (1.0, 32, "direct")
    assert document["tile"] == {"columns": 128, "threads": 128, "bits": 16}
    shown = cli("epilogue", SHIPPED, "--top-k", "1").out
    assert re.search(r"^> 32x32b\.x128 -> 32 B stores +\d+ +32 ", shown, re.MULTILINE)
    assert "it moves the sectors of the best, and touches 4 times its cache lines" in shown


@pytest.mark.slow
def test_a_kernels_own_epilogue_counts_what_the_simulator_counts(cli: Cli) -> None:
    """One tile of 128 x 128 by four warps: requests and sectors of the stores, by layouts and by addresses seen."""
    pytest.importorskip("torch")
    (own,) = [way for way in json.loads(cli("epilogue", SHIPPED, "--json").out)["ranked"] if way["own"]]
    (problem,) = json.loads(cli("cost", SHIPPED, "--problem", "128x128x256", "--json").out)["problems"]
    (launch,) = problem["launches"]
    seen = {name: launch["counters"][f"global.store.{name}"] for name in ("requests", "sectors", "sectors_least")}
    assert seen == {
        "requests": 4 * own["requests"],
        "sectors": 4 * own["sectors"],
        "sectors_least": 4 * own["ideal_sectors"],
    }


def test_a_tile_is_ranked_for_its_threads_and_elements(cli: Cli) -> None:
    done = cli("epilogue", "--tile", "128,256", "--threads", "256", "--bits", "8", "--top-k", "2", "--json")
    document = json.loads(done.out)
    assert document["tile"] == {"columns": 256, "threads": 256, "bits": 8}
    assert len(document["ranked"]) == 2
    assert document["own"] is None


@pytest.mark.parametrize(
    ("allocated", "total", "ctas"),
    [((256,), 256, 2), ((128, 64), 192, 2), ((None,), None, None), ((1024,), 1024, None)],
)
def test_columns_without_named_tensors_are_unknown_and_not_0(
    allocated: tuple[int | None, ...], total: int | None, ctas: int | None
) -> None:
    (row,) = _kernel_rows(judge("gemm", allocated, usage([])))
    assert row == ("gemm", None, None, None, None, None, total, None, ctas, "tcgen05.alloc")
