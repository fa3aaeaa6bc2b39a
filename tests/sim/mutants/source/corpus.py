"""The kernels whose sources are edited, and what they are run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_nvfp4.problem import GROUP_GEMM, Group, Problem
from tests.sim.mutants.source.edit import REFACTORING, Edit, parse

ROOT = Path(__file__).parents[4]
STRUCTURES = "tests/sim/mutants/structures"


@dataclass(frozen=True)
class Subject:
    """A kernel.

    Attributes:
        name: Its name, and that of the file of its edits beside this one.
        path: Its file, relative to the repository.
        groups: (m, n, k) of the groups that it is run on; empty for a kernel with a contract of its own.
        contract: ``FILE::NAME`` of that contract, relative to the repository, and the function that it calls.
        task: The contract of the groups; (m, n, k, l) has the batches of one group.
        small: Replacements that keep the kernel what it is and make it cheaper to compile.
        sms: SMs of the simulated device; None for those of the product. With few of them a CTA has several tiles.
    """

    name: str
    path: str
    groups: tuple[tuple[int, ...], ...] = ()
    contract: tuple[str, str] = ("", "")
    task: str = GROUP_GEMM
    arch: str = "sm_100a"
    small: tuple[tuple[str, str], ...] = ()
    sms: int | None = None

    @cached_property
    def edits(self) -> tuple[Edit, ...]:
        """Its mutants and refactorings."""
        return tuple(parse(Path(__file__).parent / f"{self.name}.diff"))

    @property
    def mutants(self) -> tuple[Edit, ...]:
        """The mistakes."""
        return tuple(edit for edit in self.edits if edit.topic != REFACTORING)

    @property
    def problem(self) -> Problem:
        """What it is run on."""
        return Problem("mutants", tuple(Group(*sizes) for sizes in self.groups), 7, self.task)

    def text(self, edit: Edit | None = None) -> str:
        """Return the kernel's source, edited."""
        text = (ROOT / self.path).read_text()
        if edit is not None:
            text = edit.applied(text)
        return Edit("", "small", renames=list(self.small)).applied(text)


SUBJECTS = (
    # Two pairs with several tiles each, of which two in succession overlap in tensor memory.
    Subject(
        "sm100",
        "kernels/nvfp4_group_gemm/sm100.py",
        ((760, 256, 512), (208, 256, 1536), (72, 256, 256)),
        small=(("SMS = 148\n", "SMS = 4\n"),),
    ),
    # Nine k-tiles refill the ring of three stages twice; the first group is ragged.
    Subject("map_updates", "kernels/nvfp4_group_gemm/steps/map_updates.py", ((136, 128, 2304), (72, 256, 512))),
    # Two widths, a tile that begins inside a group, ragged last tiles; three items refill all stages of one cluster.
    Subject(
        "sm90",
        "kernels/nvfp4_group_gemm/sm90.py",
        ((180, 128, 1024), (24, 256, 1792)),
        arch="sm_90a",
        small=(("WIDTHS = (48, 64, 80, 96, 128, 160, 176, 256)", "WIDTHS = (48, 96)"),),
        sms=2,
    ),
    Subject(
        "copy_transpose",
        "kernels/copy_transpose/sm90.py",
        contract=("kernels/copy_transpose/contract.py::CopyTranspose", "transpose_into"),
        arch="sm_90a",
    ),
    Subject(
        "reduce_sum",
        "kernels/reduce_sum/sm90.py",
        contract=("kernels/reduce_sum/contract.py::ReduceSum", "row_sums_into"),
        arch="sm_90a",
    ),
    Subject(
        "softmax_online",
        "kernels/softmax_online/sm90.py",
        contract=("kernels/softmax_online/contract.py::SoftmaxOnline", "softmax_into"),
        arch="sm_90a",
    ),
    # Two CTAs with four and three tiles, so that both accumulators are filled again.
    Subject(
        "persistent",
        f"{STRUCTURES}/persistent.py",
        ((136, 256, 768), (72, 384, 512)),
        sms=2,
    ),
    Subject("two_cta", f"{STRUCTURES}/two_cta.py", ((200, 128, 1536), (72, 256, 512))),
    # The second group has an odd number of tiles along m.
    Subject("multicast", f"{STRUCTURES}/multicast.py", ((200, 128, 1536), (300, 128, 512))),
    # Three parts of six or seven k-tiles of 128, and of two.
    Subject("split_k", f"{STRUCTURES}/split_k.py", ((136, 128, 2560), (72, 256, 768))),
    Subject("epilogue_smem", f"{STRUCTURES}/epilogue_smem.py", ((136, 128, 1280), (72, 256, 512))),
    # Parts of K of five k-tiles or more, which refill the rings; stages that hold the partial sums of a cluster.
    Subject(
        "nvfp4_gemm",
        "kernels/nvfp4_gemm/sm100.py",
        ((128, 256, 7168),),
        task="nvfp4_gemm",
        small=(("STAGES = 6\n", "STAGES = 3\n"),),
    ),
    Subject(
        "nvfp4_dual_gemm",
        "kernels/nvfp4_dual_gemm/sm100.py",
        ((128, 256, 2560),),
        task="nvfp4_dual_gemm",
        small=(("STAGES = 4\n", "STAGES = 2\n"),),
    ),
    Subject(
        "nvfp4_gemv",
        "kernels/nvfp4_gemv/sm100.py",
        ((128, 1, 5120, 2),),
        task="nvfp4_gemv",
        small=(("STAGES = 5\n", "STAGES = 2\n"), ("MOST_PARTS = 8", "MOST_PARTS = 4")),
    ),
    # One CTA takes over all tiles of a group.
    Subject("clc", f"{STRUCTURES}/clc.py", ((136, 384, 768), (72, 256, 512)), sms=1),
)
