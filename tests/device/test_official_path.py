"""Kernels that are not launched on the fitted problem have their authors' names."""

from __future__ import annotations

from pytest_nvfp4.device import official_path


def test_an_instance_of_a_template_is_named_with_its_numbers() -> None:
    one, other = ((f"_ZN4mine4gemmILi{k}EEEvPf", (192, 1, 1), (1, 1, 1), 0) for k in (512, 1024))
    missing = official_path.unlaunched(frozenset([one]), {"k = 512": frozenset([one]), "k = 1024": frozenset([other])})
    (said,) = official_path.described(missing, frozenset([one]), {})
    assert said == "not launched here: mine::gemm<1024>, which is for k = 1024"
