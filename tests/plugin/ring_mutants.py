"""Early releases of a stage in the shipped GEMMs: right results, and no race before the ring comes round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm"

_COMMIT = """            with cute.arch.elect_one():
                tcgen05.commit(empty_mbar + stage)
"""
_FILLS = ("cute.copy(tma_atom_a, tAgA[None, k_tile]", "cute.copy(tma_atom_b, tBgB[None, k_tile]")
_READS = ("cute.gemm(tiled_mma, tCtAcc",)


@dataclass(frozen=True)
class RingMutant:
    """An early release.

    Attributes:
        kernel: Name of the file in the kernel's folder.
        replaced: Pairs of a text that stands once in the kernel, and its replacement.
        fills: Texts of the lines of which one overwrites the stage.
        reads: Texts of the lines of which one still reads it.
    """

    kernel: str
    replaced: tuple[tuple[str, str], ...]
    fills: tuple[str, ...] = _FILLS
    reads: tuple[str, ...] = _READS

    @property
    def source(self) -> str:
        """The kernel with the mistake."""
        text = (KERNELS / self.kernel).read_text(encoding="utf-8")
        for old, new in self.replaced:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {self.kernel}"
            text = text.replace(old, new)
        return text

    def lines(self, texts: tuple[str, ...]) -> list[int]:
        """The numbers of the lines that hold one of the texts."""
        numbered = enumerate(self.source.splitlines(), start=1)
        found = [number for number, line in numbered if any(text in line for text in texts)]
        assert found
        return found


RING_MUTANTS = {
    "a plain arrive instead of a commit": RingMutant(
        "steps/map_updates.py", ((_COMMIT, _COMMIT.replace("tcgen05.commit", "cute.arch.mbarrier_arrive")),)
    ),
    "no wait for the wgmma before the last": RingMutant(
        "sm90.py",
        (("            warpgroup.wait_group(1)\n", ""),),
        fills=("target = tokens_address + stage",),
        reads=("cute.gemm(", "tiled_mma,"),
    ),
}
