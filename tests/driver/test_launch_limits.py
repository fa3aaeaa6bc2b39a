"""A CUBIN that cannot come from the PTX beside it."""

from __future__ import annotations

import contextlib

import pytest

from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.cubin import CubinKernel
from pytest_nvfp4.driver.launch_limits import check_code
from pytest_nvfp4.driver.launches import HostSideError

PTX = """
.visible .entry other(.param .u64 p) { ret; }
.visible .entry k(
	.param .align 64 .b8 k_param_0[128]
)
.reqntid 192{SIZES}
{
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
	ret;
}
"""


@pytest.mark.parametrize(
    ("sizes", "threads", "groups", "problem"),
    [
        (", 1, 1", (192, 1, 1), {"cta_group::1"}, None),
        ("", (192, 1, 1), set(), None),
        (", 2", (192, 2, 1), {"cta_group::1"}, None),
        (", 2", (192, 1, 1), {"cta_group::1"}, "requires CTAs of .192, 1, 1. threads, and its PTX of .192, 2, 1."),
        (", 1, 1", None, {"cta_group::1"}, "requires CTAs of None"),
        (", 1, 1", (192, 1, 1), {"cta_group::1", "cta_group::2"}, "tcgen05 with cta_group::2, and its PTX has none"),
    ],
)
def test_code_that_ptxas_does_not_make_is_refused(
    sizes: str, threads: tuple[int, int, int] | None, groups: set[str], problem: str | None
) -> None:
    kernels = {
        "k": CubinKernel("k", (), 0, threads=threads, cta_groups=frozenset(groups)),
        "other": CubinKernel("other", (), 0),
    }
    with contextlib.nullcontext() if problem is None else pytest.raises(HostSideError, match=problem):
        check_code(kernels, ptx_module.parse(PTX.replace("{SIZES}", sizes)))
