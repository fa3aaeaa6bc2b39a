"""What OpenBLAS is told in a process that simulates."""

from __future__ import annotations

import pytest

from pytest_nvfp4.isolation.blas import kernels, variables

AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "want"),
    [
        ("AuthenticAMD", f"fpu avx2 {AVX512} sha_ni", "SKYLAKEX"),
        ("AuthenticAMD", "fpu avx2 avx512f avx512dq avx512cd avx512bw", None),
        ("AuthenticAMD", "fpu avx2", None),
        ("GenuineIntel", f"fpu avx2 {AVX512}", None),
    ],
)
def test_only_an_amd_with_avx_512_is_told_its_kernels(vendor: str, flags: str, want: str | None) -> None:
    assert kernels(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n") == want


def test_a_cpu_that_says_nothing_is_left_alone() -> None:
    assert kernels("") is None


def test_a_choice_that_somebody_made_stands() -> None:
    assert variables({"OPENBLAS_CORETYPE": "ZEN"})["OPENBLAS_CORETYPE"] == "ZEN"
    assert variables({})["OPENBLAS_NUM_THREADS"] == "1"
