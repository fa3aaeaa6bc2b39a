"""Check the PTX and the SASS of the sm_90a grouped GEMM."""

from __future__ import annotations

import re
from types import SimpleNamespace

from tests.kernels.compiled import count
from tests.kernels.sm90_source import widths

# A Hopper SM: registers, and shared memory that one CTA may have.
SM_REGISTERS, CTA_SMEM = 65536, 227 * 1024


def check_wgmma(ptx: str, constants: SimpleNamespace) -> None:
    """Of each width one main loop: 4 atoms of 4 K-steps, the weights in registers and the tokens in shared memory."""
    for width in widths(constants):
        name = rf"wgmma\.mma_async\.sync\.aligned\.m64n{width}k16\.f32\.f16\.f16"
        registers = r"\{%[rf]\d+(?:, %[rf]\d+)*\}"
        assert count(rf"{name} {registers}, \{{(?:%r\d+(?:, )?){{4}}\}}, %rd\d+,", ptx) == 16, width
    assert count(r"wgmma\.mma_async", ptx) == 16 * len(widths(constants))


def check_copies(ptx: str, constants: SimpleNamespace) -> None:
    """Tokens, to both CTAs; weights by a tensor map that was acquired; their scales."""
    assert count(r"cp\.async\.bulk\.", ptx) == 3
    assert count(r"cp\.async\.bulk\.shared\S*multicast::cluster", ptx) == 1
    assert count(r"cp\.async\.bulk\.tensor\.2d", ptx) == 1
    assert count(r"fence\.proxy\.tensormap::generic\.acquire\.sys \[%rd\d+\], 128;", ptx) == 2
    expected = re.findall(r"mbarrier\.arrive\.expect_tx\S* \t?%rd\d+, \[[^\]]*\], (%r\d+);", ptx)
    assert len(expected) == 2
    stage = [register for register in expected if count(rf"mov\.b32 \t{register}, {constants.WEIGHT_STAGE};", ptx)]
    assert len(stage) == 1


def check_barriers(ptx: str, constants: SimpleNamespace) -> None:
    registers = re.findall(r"mbarrier\.init\.shared\S* \t?\[[^\]]*\], (%r\d+);", ptx)
    values = [int(re.search(rf"mov\.b32 \t{re.escape(register)}, (\d+);", ptx)[1]) for register in registers]
    weights = [1, constants.CONSUMER_WARPS] * constants.WEIGHT_STAGES
    tokens = [1, constants.CONSUMER_WARPS * constants.CLUSTER] * constants.TOKEN_STAGES
    assert values == tokens + weights
    # Between the initialisation and the first use; the warp that loads weights waits at its end.
    assert count(r"barrier\.cluster\.arrive\.relaxed", ptx) == count(r"barrier\.cluster\.arrive", ptx) == 1
    assert count(r"barrier\.cluster\.wait", ptx) == 2
    assert ptx.rindex("fence.mbarrier_init") < ptx.index("barrier.cluster.arrive") < ptx.index("mbarrier.try_wait")


def check_overlap_of_launches(ptx: str) -> None:
    """The first kernel lets the second start; what the first writes is copied only after the second has waited."""
    assert count(r"griddepcontrol\.launch_dependents", ptx) == count(r"griddepcontrol\.wait", ptx) == 1
    assert ptx.index("griddepcontrol.wait") < ptx.index("fence.proxy.async.global") < ptx.index("cp.async.bulk")


def check_epilogue(ptx: str, constants: SimpleNamespace) -> None:
    pairs = sum(width // 4 for width in widths(constants))
    assert count(r"cvt\.\w+\.f16\S*\.f32", ptx) == count(r"cvt\.rn\.f16x2\.f32", ptx) == pairs
    guarded = r"setp\.lt\.s32 p, %r\d+, %r\d+; @p st\.global\.b32 \[%rd\d+\], %r\d+;"
    assert count(r"st\.global\.b32", ptx) == count(guarded, ptx) == pairs


def check_wgmma_is_asynchronous(sass: str, constants: SimpleNamespace) -> None:
    """ptxas kept two groups in flight: where it cannot, it waits for each wgmma by itself and only says so."""
    instances = len(widths(constants))
    assert count(r"\bHGMMA\.64x\d+x16\.F32", sass) == 16 * instances
    assert count(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1\b", sass) == 4 * instances
    assert count(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b", sass) == instances


def check_registers(sass: str, usage: str, constants: SimpleNamespace) -> None:
    assert count(r"\b(?:LDL|STL)\b", sass) == 0
    assert set(re.findall(r"\b(?:STACK|LOCAL):(\d+)", usage)) == {"0"}
    # At entry every thread has what the consumers and the producers share out by setmaxnreg.
    at_entry = max(int(registers) for registers in re.findall(r"\bREG:(\d+)", usage))
    shared_out = constants.PRODUCER_REGISTERS + constants.CONSUMERS * constants.CONSUMER_REGISTERS
    assert shared_out <= at_entry * (1 + constants.CONSUMERS) <= SM_REGISTERS / 128
    most = max(int(register) for register in re.findall(r"\bR(\d+)\b", sass))
    assert most < constants.CONSUMER_REGISTERS
