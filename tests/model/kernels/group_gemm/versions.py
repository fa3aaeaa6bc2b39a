"""The published versions whose twins are steps of our grouped GEMM: a step, and values of its constants."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.problem import Problem

__all__ = ["VERSIONS", "constants_of", "write_version"]

VERSIONS: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "v1c": ("map_parameters.py", {}),
    "v2e": ("persistent.py", {}),
    "v5e": ("pairs.py", {}),
    "v6b": ("pairs.py", {"MOST_TOKENS": 256}),
}
STEPS: Final = Path(__file__).parents[4] / "kernels/nvfp4_group_gemm/steps"

NARROW: Final[dict[str, object]] = {"TILE_N": 128, "STAGES": 6, "MOST_CTAS": 0}
"""v2e where tiles of 256 columns would occupy less than its 128 CTAs: one tile of 128 a CTA, as v1c has them. (Its
published times of these problems are v1c's.)"""


def constants_of(version: str, problem: Problem) -> dict[str, object]:
    """Return the constants of a version that depend on the problem, beyond those of ``VERSIONS``."""
    wide = sum(math.ceil(group.m / 128) * math.ceil(group.n / 256) for group in problem.groups)
    return NARROW if version == "v2e" and wide < 128 else {}


def write_version(version: str, folder: Path, constants: Mapping[str, object] | None = None) -> Path:
    """Write the file of a version, with further values of constants, and return its path.

    Raises:
        ValueError: The file does not assign one of the constants exactly once.
    """
    name, values = VERSIONS[version]
    text = (STEPS / name).read_text()
    for constant, value in {**values, **(constants or {})}.items():
        text, count = re.subn(rf"^{constant} = .*$", f"{constant} = {value!r}", text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{name} assigns {constant} {count} times")
    path = folder / f"{version}.py"
    path.write_text(text)
    return path
