"""The problem fitted to a kernel refills its rings, has the edge cases, and says what it does not reach."""

from __future__ import annotations

import pytest

from pytest_nvfp4.contracts.base import Contract
from pytest_nvfp4.contracts.dual_gemm import DualGemm
from pytest_nvfp4.contracts.gemm import Gemm
from pytest_nvfp4.contracts.gemv import Gemv
from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.device.fitted_problem import FittedProblem, fit
from pytest_nvfp4.device.ring_counts import REFILLS, not_refilled
from pytest_nvfp4.problem import GPUMODE, Problem

from .modelled_kernels import ModelledKernel

GROUP_GEMM = GroupGemm()


def fitted(kernel: ModelledKernel, contract: Contract = GROUP_GEMM, *, ahead: bool = False) -> FittedProblem:
    """The fitted problem, which obeys the contract."""
    found = fit(kernel.observe, contract=contract, fallback=contract.tests[0], ahead=ahead)
    assert contract.violation(found.problem) is None
    assert found.problem.contract == contract.name
    return found


def refills(found: FittedProblem) -> dict[str, int]:
    """How often each ring is refilled on the problem, by its line."""
    assert found.shown.call is not None
    return {ring.made: ring.refills for launch in found.shown.call.launches for ring in launch.rings}


def test_a_k_tile_beyond_the_small_tiles_is_found_on_a_larger_k():
    found = fitted(ModelledKernel(stages=3, k_tile=1024))
    assert found.problem.groups[0].k in range(8 * 1024 + 1, 9 * 1024 + 1)
    assert refills(found)["k.py:1"] == REFILLS


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("k_tile", [64, 128, 256, 512])
def test_the_smallest_k_refills_every_stage(stages: int, k_tile: int):
    found = fitted(ModelledKernel(stages=stages, k_tile=k_tile))
    deep = found.problem.groups[0]
    assert refills(found)["k.py:1"] >= REFILLS
    assert deep.k == max(256, -(-(REFILLS + 1) * stages * k_tile // 256) * 256), "one k-tile less would not do"
    assert f"k.py:1 ({stages} stage" in str(found)


def test_the_edges_are_there_and_said():
    found = fitted(ModelledKernel())
    assert [(group.m, group.n) for group in found.problem.groups] == [(128, 128), (0, 128), (72, 256)]
    assert "one group has no rows; 72 rows are ragged for tiles of 128" in str(found)
    wide = fitted(ModelledKernel(tile=(256, 256)))
    assert [(group.m, group.n) for group in wide.problem.groups] == [(256, 256), (0, 128), (200, 384)]
    assert "200x384 is ragged for tiles of 256x256" in str(wide)


def test_the_tile_of_a_cluster_is_not_that_of_its_writers():
    found = fitted(ModelledKernel(tile=(256, 128), pairs=True))
    assert [(group.m, group.n) for group in found.problem.groups] == [(256, 128), (0, 128), (200, 256)]
    assert "200 rows are ragged for tiles of 256" in str(found)


def test_a_ring_that_completes_once_a_tile_is_said_where_a_cta_has_one_tile():
    found = fitted(ModelledKernel(accumulators=2))
    assert found.sms is None
    assert "k.py:2 (2 stages) completes 1 phase a tile, whatever k is, and a CTA has 1 tile" in str(found)


@pytest.mark.parametrize("grid", ["device", "queue"])
@pytest.mark.parametrize("accumulators", [1, 2, 4])
def test_a_persistent_kernel_gets_a_small_device_and_refills_its_accumulators(grid: str, accumulators: int):
    kernel = ModelledKernel(accumulators=accumulators, grid=grid)  # type: ignore[arg-type]
    found = fitted(kernel)
    assert found.sms == 2
    assert min(refills(found).values()) >= REFILLS
    assert sum(executed == found.problem.name for executed, _ in kernel.seen) == 1, "the first guess is right"


def test_a_grid_that_the_device_does_not_change_gets_more_tiles_than_ctas():
    found = fitted(ModelledKernel(grid="fixed"))
    assert found.sms is None
    assert found.problem.groups[-1].n // 128 + 1 > 148
    assert "its grid of 148 CTAs grows neither with the tiles nor with the device" in str(found)
    assert refills(found)["k.py:2"] == 1, "some CTA has two tiles"
    assert "k.py:2 (1 stage) completes 2 phases, whatever k is: more tiles for a CTA are not tried" in str(found)


@pytest.mark.parametrize("grid", ["device", "queue"])
def test_a_failure_of_a_third_tile_keeps_the_small_device(grid: str):
    """On the whole device no CTA has a third tile, and the failure would not be seen."""
    found = fitted(ModelledKernel(grid=grid, accumulators=2, most_tiles=2))  # type: ignore[arg-type]
    assert found.sms == 2
    assert found.shown.errors
    assert "could not be counted, because the kernel fails on it" in str(found)


def test_a_finding_on_very_many_tiles_keeps_the_small_device():
    """A later call may launch them in another way, which is executed and checked."""
    kernel = ModelledKernel(grid="device", accumulators=2)
    fitted(kernel)
    (many,) = {name for name, sms in kernel.seen if name.startswith("1x")}
    found = fitted(ModelledKernel(grid="device", accumulators=2, races=(many,)))
    assert found.sms == 2
    assert min(refills(found).values()) >= REFILLS


def test_a_kernel_that_fails_on_a_small_device_runs_on_the_whole_one():
    found = fitted(ModelledKernel(grid="device", least_sms=16))
    assert found.sms is None
    assert "the kernel fails on a device of 2 SMs" in str(found)
    assert refills(found)["k.py:2"] == 1, "some CTA has two tiles"
    assert "k.py:2 (1 stage) completes 2 phases, whatever k is: more tiles for a CTA are not tried" in str(found)


def test_a_ring_that_nothing_uses_is_said():
    assert "nothing completes a phase of k.py:3 (2 stages)" in str(fitted(ModelledKernel(unused_ring=True)))


def test_a_pipeline_that_no_k_fills_is_said():
    found = fitted(ModelledKernel(stages=40, k_tile=1024))
    assert found.problem.groups[0].k == 16384
    assert "k.py:1 (40 stages) completes 16 phases: a larger k is not tried" in str(found)


def test_refused_sizes_are_replaced_and_said():
    coarse = fitted(ModelledKernel(refuses=["128x128x2304+0x128x256+72x256x256"]))
    assert coarse.problem.groups[0].k == 3072
    assert "the kernel refuses 128x128x2304+0x128x256+72x256x256 (ValueError: these sizes)" in str(coarse)
    full = fitted(ModelledKernel(takes_empty=False))
    assert [group.m for group in full.problem.groups] == [128, 72]
    assert "no rows" not in str(full)
    twice = fitted(ModelledKernel(takes_empty=False, refuses=["128x128x3072+72x256x256"]))
    assert twice.problem.name == "128x128x4096+72x256x4096", "the smallest official k that refills every stage"
    assert refills(twice)["k.py:1"] >= REFILLS
    none = fitted(ModelledKernel(rows=[96, 128], stages=1))
    assert none.problem == GPUMODE[0]
    assert "k.py:1 (1 stage) completes 2 phases: no official k that is tried refills it" in str(none)


def test_a_kernel_that_fails_on_small_tiles_gets_nine_k_tiles():
    found = fitted(ModelledKernel(fails=["256x128x512"]))
    assert found.problem.groups[0].k == 2304
    assert "its rings could not be measured on small tiles, because the kernel fails there" in str(found)


def test_a_kernel_that_fails_on_the_problem_still_has_it():
    found = fitted(ModelledKernel(fails=["128x128x2304+0x128x256+72x256x256"]))
    assert found.shown.errors
    assert "could not be counted, because the kernel fails on it" in str(found)


def test_rings_of_other_problems_are_named():
    (done,) = ModelledKernel().observe([GPUMODE[0]], (), None)
    assert done.call is not None
    assert not_refilled(done.call) == ["k.py:1 (3 stages, 2 phases)"]
    shown = fitted(ModelledKernel()).shown
    assert shown.call is not None
    assert not_refilled(shown.call) == []


@pytest.mark.parametrize("contract", [Gemm(), DualGemm(), Gemv()], ids=lambda contract: contract.name)
@pytest.mark.parametrize("grid", ["tiles", "device", "fixed", "queue"])
@pytest.mark.parametrize(("stages", "k_tile"), [(2, 64), (3, 256), (7, 512)])
def test_one_problem_refills_every_stage_too(contract: Contract, grid: str, stages: int, k_tile: int):
    kernel = ModelledKernel(stages=stages, k_tile=k_tile, grid=grid, accumulators=2)  # type: ignore[arg-type]
    found = fitted(kernel, contract)
    (sizes,) = found.problem.groups
    assert refills(found)["k.py:1"] >= REFILLS
    assert sizes.k <= max(1024, -(-(REFILLS + 1) * stages * k_tile // 256) * 256)
    assert (refills(found)["k.py:2"] >= REFILLS) == (grid in ("device", "queue"))
    assert "no rows" not in str(found)


def test_one_problem_has_a_ragged_tile_where_the_kernels_tile_is_larger():
    found = fitted(ModelledKernel(tile=(256, 256)), Gemm())
    assert found.problem.sizes == [(256, 640, 2304, 1)]
    assert "256x640 is ragged for tiles of 256x256" in str(found)
    (vector,) = fitted(ModelledKernel(tile=(128, 1)), Gemv()).problem.groups
    assert (vector.m, vector.n) == (384, 1)


def test_one_problem_that_is_refused_has_another_k_or_is_an_official_one():
    found = fitted(ModelledKernel(least_k=1024), Gemm())
    assert found.problem.groups[0].k % 1024 == 0
    refused = fitted(ModelledKernel(least_k=1 << 20), Gemm())
    assert refused.problem == Gemm.tests[0]


INSTANCES = {256: 1, 512: 2, 1536: 4, 2048: 4, 4096: 4, 7168: 4}
"""Stages of a kernel with an instance for each official k of dual_gemm; k = 2304 has none."""


def test_a_kernel_with_instances_for_official_k_alone_gets_the_smallest_that_refills():
    found = fitted(ModelledKernel(instances=INSTANCES, accumulators=2), DualGemm())
    assert found.problem.sizes == [(128, 384, 4096, 1)]
    assert refills(found) == {"k.py:1": 3, "k.py:2": -1}
    assert "k.py:2 (2 stages) completes 1 phase a tile, whatever k is, and a CTA has 1 tile" in str(found)
    assert "no official k refills k.py:1 (2 stages), which completes 2 phases for k = 512" in str(found)


def test_an_instance_that_is_launched_for_every_other_k_is_not_the_one_that_is_searched():
    found = fitted(ModelledKernel(instances=INSTANCES, other_k=256), DualGemm())
    assert found.problem.groups[0].k == 4096
    assert refills(found)["k.py:1"] >= REFILLS
    assert "the host code chooses the kernel by k, which is an official one" in str(found)


def test_rings_of_an_instance_that_is_not_chosen_are_said():
    found = fitted(ModelledKernel(instances={**INSTANCES, 1536: 2, 7168: 5}), DualGemm())
    assert found.problem.groups[0].k == 7168, "the deepest ring"
    assert "not refilled here: k.py:1 (2 stages) of the kernel for k = 1536" in str(found)
    assert "not refilled here: k.py:1 (4 stages) of the kernel for k = 4096" in str(found)


def test_no_official_k_that_refills_a_ring_is_said():
    found = fitted(ModelledKernel(instances=dict.fromkeys(INSTANCES, 40)), DualGemm())
    assert "k.py:1 (40 stages) completes 1 phase: no official k that is tried refills it" in str(found)


def test_official_sizes_alone_give_the_official_problem_that_refills():
    found = fitted(ModelledKernel(instances=INSTANCES, rows=[256, 512]), DualGemm())
    assert found.problem.sizes == [(512, 768, 7168, 1)]
    assert refills(found)["k.py:1"] >= REFILLS


def test_kernels_for_other_official_k_are_named():
    found = fitted(ModelledKernel(instances=INSTANCES, accumulators=2), DualGemm())
    assert "not launched here: gemm_512, which is for k = 512" in found.why
    assert "gemm_4096, which" not in str(found), "the one that is launched"
    assert found.others == ()


def test_kernels_that_are_compiled_ahead_have_a_small_problem_each():
    found = fitted(ModelledKernel(instances=INSTANCES), DualGemm(), ahead=True)
    ks = [problem.groups[0].k for problem in found.others]
    assert ks == [7168, 256, 1536, 2048, 512]
    said = "not launched here: gemm_1536, which is for gpumode-3; races are searched for on 128x128x1536"
    assert said in found.why
    assert sum(reason.startswith("not launched here") for reason in found.why) == len(ks)


def test_a_kernel_that_is_chosen_by_the_rows_is_searched_on_an_official_problem():
    kernel = ModelledKernel(by_rows=1000)
    found = fitted(kernel, DualGemm(), ahead=True)
    assert [problem.name for problem in found.others] == ["gpumode-9"], "the one with the fewest multiply-adds"
    assert "not launched here: gemm_of_many_rows, which is for gpumode-0, gpumode-2, gpumode-3, gpumode-4" in str(found)
    assert fitted(kernel, DualGemm()).others == (), "a kernel that is compiled for each problem"


class ByColumns(ModelledKernel):
    """Launches another kernel from 400 columns of all groups on: the fitted problem has more, one tile fewer."""

    def _name(self, problem: Problem, instance: int) -> str:
        return (
            "gemm_of_few_columns"
            if sum(group.n for group in problem.groups) < 400
            else super()._name(problem, instance)
        )


def test_a_kernel_of_one_tile_is_searched_if_official_problems_launch_it():
    found = fitted(ByColumns(), ahead=True)
    assert {launch.kernel for launch in found.shown.call.launches} == {"gemm"}
    official = [each for each in GROUP_GEMM.tests if sum(group.n for group in each.groups) < 400]
    assert official
    assert len(found.others) == 1
    assert f"not launched here: gemm_of_few_columns, which is for {official[0].name}" in str(found)
    assert "not launched here" not in str(fitted(ByColumns())), "a kernel that is compiled for each problem"


class BySize(ModelledKernel):
    """Launches another kernel for each number of rows and columns."""

    def _name(self, problem: Problem, instance: int) -> str:
        return f"{super()._name(problem, instance)}_{problem.groups[0].m}x{problem.groups[0].n}"


def test_kernels_without_a_small_problem_take_the_place_of_no_other_one():
    contract = DualGemm()
    found = fitted(BySize(), contract, ahead=True)
    small = [each.name for each in contract.tests if contract.multiply_adds(each) <= contract.most]
    assert "gpumode-9" in small, "behind eight kernels for larger problems"
    assert set(small) == {problem.name for problem in found.others}


def test_one_kernel_for_all_problems_leaves_nothing_out():
    found = fitted(ModelledKernel(), DualGemm(), ahead=True)
    assert found.others == ()
    assert "not launched here" not in str(found)


def test_one_kernel_for_every_k_keeps_its_k():
    kernel = ModelledKernel(k_tile=256)
    assert fitted(kernel, DualGemm()).problem.groups[0].k == 2304
    assert len({name for name, _ in kernel.seen if name.endswith("x7168")}) == 1, "it is recorded once"


def test_a_kernel_that_is_chosen_by_the_number_of_groups_keeps_its_k():
    kernel = ModelledKernel(by_groups=True)
    found = fitted(kernel)
    assert found.problem == fitted(ModelledKernel()).problem
    assert "chooses the kernel by k" not in str(found)
