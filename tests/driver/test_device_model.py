from __future__ import annotations

import pytest

from pytest_nvfp4.driver.device_model import B200, B300, H200, for_arch


@pytest.mark.parametrize(
    ("arch", "model"), [("sm_100a", B200), ("sm_100f", B200), ("sm_103a", B300), ("sm_90a", H200), ("sm_90", H200)]
)
def test_known_devices(arch: str, model: object) -> None:
    assert for_arch(arch) is model


@pytest.mark.parametrize(
    ("arch", "capability", "kib"), [("sm_80", (8, 0), 163), ("sm_110a", (11, 0), 227), ("sm_120a", (12, 0), 99)]
)
def test_others_have_the_limits_of_their_architecture(arch: str, capability: tuple[int, int], kib: int) -> None:
    model = for_arch(arch)
    assert model.capability == capability
    assert model.smem_per_block_optin == kib * 1024
    assert model.attributes()["COMPUTE_CAPABILITY_MAJOR"] == capability[0]
    assert "B200" not in model.name


@pytest.mark.parametrize(
    ("arch", "threads", "blocks"), [("sm_89", 1536, 24), ("sm_120a", 1536, 24), ("sm_110a", 2048, 32)]
)
def test_an_sm_has_as_many_threads_as_its_architecture(arch: str, threads: int, blocks: int) -> None:
    model = for_arch(arch)
    assert (model.threads_per_sm, model.blocks_per_sm) == (threads, blocks)


def test_every_device_keeps_a_kib_of_each_blocks_shared_memory() -> None:
    for model in (B200, B300, H200, for_arch("sm_120a")):
        assert model.smem_per_block_optin + model.smem_reserved_per_block == model.smem_per_sm
