"""A kernel in a message has the name that its author gave it."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver.kernel_names import short_kernel


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("kernel_cutlass_scale_tensorptrf32gmemo641_0", "scale"),
     ("kernel_cutlass_kernel_kernelTile_object_at___0", "kernel"),
     ("kernel_cutlass_group_gemm_kernel_TiledMMA_ThrLayoutVMNK1", "group_gemm_kernel"), ("mine", "mine"),
     ("_Z8consumerPKfPfib", "consumer"), ("_ZL5scalePf", "scale"), ("_Z4k_v2v", "k_v2"), ("_Z99short", "_Z99short"),
     ("_ZN4mine5scaleEPf", "mine::scale"), ("_ZN3lib4kernI3CfgfLi3EEEvPKT0_PS2_", "lib::kern"),
     ("_Z4gemmILi128ELi3EEvPf", "gemm<128, 3>"),
     ("_Z4gemmILb1ELin3EEvPf", "gemm<true, -3>"), ("_Z4gemmIfLi3EEvPf", "gemm"),
     ("_Z4gemmILi128E6__halfEvPf", "gemm<128, ...>"), ("_Z4gemmILi12", "gemm"),
     ("_ZN3lib4gemmILN4cute5MajorE0ELS2_1EL4Mode2EEEvPf", "lib::gemm<0, 1, 2>"),
     ("kernel_cutlass_group_gemm_kernel_TiledMMA_Thr_0", "group_gemm_kernel"),
     ("kernel_cutlass_fill_tensorptrf16gmem_0", "fill"),
     ("_ZN12_GLOBAL__N_15scaleEPf", "scale"), ("_ZN99short", "_ZN99short"),
     ("x" * 80, "x" * 57 + "...")],
)  # fmt: skip
def test_a_kernel_is_called_what_the_user_calls_it(symbol: str, name: str) -> None:
    assert short_kernel(symbol) == name
