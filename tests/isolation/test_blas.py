"""Configuration of OpenBLAS in worker processes."""

from __future__ import annotations

import pytest

from pytest_nvfp4.isolation.blas import core_type, variables

AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", f"fpu avx2 {AVX512} sha_ni", "SKYLAKEX"),
        ("AuthenticAMD", "fpu avx2 avx512f avx512dq avx512cd avx512bw", None),
        ("AuthenticAMD", "fpu avx2", None),
        ("GenuineIntel", f"fpu avx2 {AVX512}", None),
    ],
)
def test_only_an_amd_cpu_with_avx_512_gets_a_core_type(vendor: str, flags: str, expected: str | None) -> None:
    assert core_type(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n") == expected


def test_an_unknown_cpu_gets_no_core_type() -> None:
    assert core_type("") is None


def test_a_chosen_core_type_takes_precedence() -> None:
    assert variables({"OPENBLAS_CORETYPE": "ZEN"})["OPENBLAS_CORETYPE"] == "ZEN"
    assert variables({})["OPENBLAS_NUM_THREADS"] == "1"
