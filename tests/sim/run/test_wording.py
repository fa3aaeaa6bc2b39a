"""Hints name an instruction as PTX does, and as the language of the kernel's source does."""

from __future__ import annotations

import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.run.wording import worded
from tests.sim.ptx_case import run_ptx

TEXT = """.version 8.8
.target sm_100a
.address_size 64
{file}
.visible .entry {name}() {{
{line}
ret;
}}
"""


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        (
            "kernel_cutlass_gemm_0",
            "/a/k.py",
            "bar.sync (cute.arch.barrier), bar.warp.sync (cute.arch.sync_warp), <bar>",
        ),
        ("kernel_cutlass_gemm_0", "", "bar.sync (cute.arch.barrier), bar.warp.sync (cute.arch.sync_warp), <bar>"),
        ("_Z4gemmv", "/a/k.cu", "bar.sync (__syncthreads()), bar.warp.sync (__syncwarp()), <bar>"),
        ("_Z4gemmv", "/a/cute/arch.hpp", "bar.sync (__syncthreads()), bar.warp.sync (__syncwarp()), <bar>"),
        ("gemm", "/a/k.py", "bar.sync (tl.debug_barrier()), bar.warp.sync, <bar>"),
        ("gemm", "", "bar.sync, bar.warp.sync, <bar>"),
    ],
)
def test_the_words_are_those_of_the_kernels_language(name: str, file: str, said: str) -> None:
    text = TEXT.format(name=name, file=f'.file 1 "{file}"' if file else "", line=".loc 1 7 1" if file else "")
    (kernel,) = parse(text).kernels.values()
    assert worded("<bar.sync>, <bar.warp.sync>, <bar>", kernel) == said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("%ctaid", "tl.program_id"),
        ("atom or red", "tl.atomic_add"),
        ("cp.async.bulk.wait_group.read 0", "Gluon's tma.store_wait(0)"),
        ("ld.acquire.gpu", 'tl.atomic_add(flag, 0, sem="acquire")'),
        ("st.release.gpu", 'tl.atomic_xchg(flag, 1, sem="release")'),
    ],
)
def test_what_triton_calls_it(name: str, words: str) -> None:
    (kernel,) = parse(TEXT.format(name="gemm", file='.file 1 "/a/k.py"', line=".loc 1 7 1")).kernels.values()
    assert worded(f"an <{name}>", kernel) == f"an {name} ({words})"


INIT = """
mov.u32 %r1, %laneid; add.u32 %r2, %r1, 1;
.loc 1 7 1
mbarrier.init.shared.b64 [smem], %r2;
"""


@pytest.mark.parametrize(
    ("file", "said"),
    [("/a/k.cu", "lane, of elect.sync (cuda::ptx::elect_sync) or"), ("/a/k.py", "lane, of elect.sync or thread 0")],
)
def test_a_fault_is_worded_where_its_place_is_added(file: str, said: str) -> None:
    with pytest.raises(Fault) as caught:
        run_ptx(INIT, shared=8, globals_=f'.file 1 "{file}"\n')
    assert said in caught.value.hint
