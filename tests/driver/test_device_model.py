from __future__ import annotations

import pytest

from pytest_nvfp4.driver.device_model import B200, H200, for_arch


@pytest.mark.parametrize(("arch", "model"), [("sm_100a", B200), ("sm_100f", B200), ("sm_90a", H200), ("sm_90", H200)])
def test_known_devices(arch: str, model: object) -> None:
    assert for_arch(arch) is model


@pytest.mark.parametrize(
    ("arch", "capability", "kib"), [("sm_80", (8, 0), 163), ("sm_103a", (10, 3), 227), ("sm_120a", (12, 0), 99)]
)
def test_others_have_the_limits_of_their_architecture(arch: str, capability: tuple[int, int], kib: int) -> None:
    model = for_arch(arch)
    assert model.capability == capability
    assert model.smem_per_block_optin == kib * 1024
    assert model.attributes()["COMPUTE_CAPABILITY_MAJOR"] == capability[0]
    assert "B200" not in model.name


def test_every_device_keeps_a_kib_of_each_blocks_shared_memory() -> None:
    for model in (B200, H200, for_arch("sm_120a")):
        assert model.smem_per_block_optin + model.smem_reserved_per_block == model.smem_per_sm
