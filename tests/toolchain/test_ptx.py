from __future__ import annotations

import pytest

from pytest_nvfp4.toolchain import ptx

MODULE = """
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dynamic_smem[];
.shared .align 16 .b8 scratch[512];
.visible .entry first(
	.param .align 128 .b8 first_param_0[128]
)
.maxntid 128, 2, 1
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.loc	1 12 5
	mov.b32 	%r1, 256;
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], %r1;
	@%p1 bra 	$L__BB0_2;
	ld.global.v4.b32 	{%r3, %r4, %r5, %r6}, [%rd1];
	{ .reg .b64 t; mov.b64 t, 3; } // a comment; with a mov
$L__BB0_2:
	@!%p2 st.global.v2.b32 [%rd1], {%r3, %r4};
	call.uni (retval0),
	vprintf,
	(
	param0,
	param1
	);
	tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r7], %rd1, %rd2, %r3, [%r4], [%r5], %p1;
	ret;
}
.visible .entry second()
{
	tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2], 64;
	mov.b32 %r1, 32;
	mov.b32 %r1, 128;
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], %r1;
	ret;
}
	.file	1 "/a/kernel.py"
	.file	2 "/dsl/cutlass/pipeline.py"
\0"""


def test_kernels_are_read_with_threads_and_tmem() -> None:
    module = ptx.parse(MODULE)
    first, second = module.kernels
    assert (first.symbol, first.max_threads, first.tmem_columns) == ("first", 256, (256,))
    assert (second.symbol, second.max_threads) == ("second", None)
    assert module.static_smem_bytes == 512
    assert module.files == ("/a/kernel.py", "/dsl/cutlass/pipeline.py")


def test_columns_that_are_not_constant_are_unknown() -> None:
    assert ptx.parse(MODULE).kernels[1].tmem_columns == (64, None)


def test_instructions_are_counted_by_what_they_do() -> None:
    assert ptx.parse(MODULE).kernels[0].mix == {
        "bra": 1,
        "call": 1,
        "ld.global.v4": 1,
        "mov": 2,
        "ret": 1,
        "st.global.v2": 1,
        "tcgen05.alloc": 1,
        "tcgen05.mma": 1,
    }


@pytest.mark.parametrize(
    ("opcode", "family"),
    [
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes", "cp.async.bulk.tensor"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster",
            "cp.async.bulk.tensor.multicast::cluster",
        ),
        ("mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.try_wait"),
        ("st.global.b16", "st.global"),
        ("tcgen05.ld.sync.aligned.32x32b.x128.b32", "tcgen05.ld.x128"),
        ("cvt.rn.f16x2.f32", "cvt"),
        ("fma.rn.f32", "fma"),
    ],
)
def test_families(opcode: str, family: str) -> None:
    assert ptx.family(opcode) == family


@pytest.mark.parametrize(
    "text", ["", "\0", "not ptx", ".entry", ".entry broken(", ".visible .entry open() {\n mov.b32 %r1, 1;"]
)
def test_fragments_do_not_break_the_reader(text: str) -> None:
    ptx.parse(text)


@pytest.mark.parametrize(
    "piece", [".entry k {", "/*", ".shared\n", "tcgen05.alloc [", "tcgen05.alloc.", "\n", '.file 1 "', "{", "9"]
)
@pytest.mark.parametrize("around", ["{}", ".entry k {{{}", ".entry k .maxntid 1,{}"])
def test_a_text_that_never_ends_what_it_begins_is_read_in_one_pass(piece: str, around: str) -> None:
    """A quadratic expression would take hours."""
    ptx.parse(around.format(piece * (200_000 // len(piece))))


def test_numbers_that_no_ptx_has_are_no_numbers() -> None:
    text = (
        ".shared .b8 x[" + "9" * 5000 + "];\n.entry k .maxntid " + "9" * 5000 + " {mov.b32 %r1, 09;"
        " tcgen05.alloc.cta_group::1 [x], %r1; tcgen05.alloc [x], word; tcgen05.alloc [x], 0x20;}"
    )
    (kernel,) = ptx.parse(text).kernels
    assert kernel.tmem_columns == (9, None, 32)
