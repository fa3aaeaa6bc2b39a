"""A kernel in a message has the name that its author gave it."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver.kernel_names import short_kernel


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("kernel_cutlass_scale_tensorptrf32gmemo641_0", "scale"),
     ("kernel_cutlass_kernel_kernelTile_object_at___0", "kernel"),
     ("kernel_cutlass_group_gemm_kernel_TiledMMA_ThrLayoutVMNK1", "group_gemm_kernel"), ("mine", "mine"),
     ("_Z8consumerPKfPfib", "consumer"), ("_ZL5scalePf", "scale"), ("_Z99short", "_Z99short"),
     ("_ZN4mine5scaleEPf", "mine::scale"), ("_ZN3lib4kernI3CfgfLi3EEEvPKT0_PS2_", "lib::kern"),
     ("_Z4gemmILi128ELi3EEvPf", "gemm"), ("_ZN12_GLOBAL__N_15scaleEPf", "scale"), ("_ZN99short", "_ZN99short"),
     ("x" * 80, "x" * 57 + "...")],
)  # fmt: skip
def test_a_kernel_is_called_what_the_user_calls_it(symbol: str, name: str) -> None:
    assert short_kernel(symbol) == name
