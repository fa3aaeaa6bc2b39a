"""Kernels of a PTX text: what ptxas would record of them in a CUBIN, and texts that are refused."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver import ptx_module

TEXT = """
.version 8.7
.target sm_100a
.address_size 64
// .entry commented(.param .u64 p) { ret; }
.extern .shared .align 16 .b8 dynamic[];
.shared .align 4 .b8 of_module[100];
.shared .align 4 .b8 unused[4000];
.visible .const .align 4 .f32 table[3] = {0f3F800000, 0f40000000, 0f00000000};
.global .v2 .u64 counters;
.extern .global .align 4 .b8 elsewhere[8];
.visible .entry first(
	.param .u64 .ptr .global .align 16 p, // a pointer, with a comment (
	.param .f32 x,
	.param .align 64 .b8 map[128],
	.param .u8 flag
)
.reqntid 128, 2
.minnctapersm 1
{
	.shared .align 8 .b64 barrier[2];
	.shared .b32 one;
	mov.u32 %r1, of_module;
	{ mov.u32 %r2, dynamic; }
	tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 512;
	ret;
}
.weak .entry second()
{
	ret;
}
.entry third { ret; }
"""


def test_kernels_are_read() -> None:
    kernels = ptx_module.parse(TEXT + "\0").kernels
    assert list(kernels) == ["first", "second", "third"]
    first = kernels["first"]
    assert first.params == ((0, 8), (8, 4), (64, 128), (192, 1))
    assert (first.threads, first.static_smem, first.registers) == ((128, 2, 1), 16 + 4 + 100, None)
    assert first.cta_groups == {"cta_group::2"}
    assert (kernels["second"].params, kernels["third"].threads, kernels["third"].static_smem) == ((), None, 0)


def test_variables_and_clusters_are_read() -> None:
    text = TEXT.replace(".entry third {", ".entry third .reqnctapercluster 2 { .local .b8 own[8];")
    module = ptx_module.parse(text)
    assert module.variables == {"table": 12, "counters": 16}
    assert module.clusters == {"third": (2, 1, 1)}


def test_instructions_of_functions_count_for_the_module() -> None:
    module = ptx_module.parse(TEXT + ".func helper() { tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32; ret; }")
    assert module.cta_groups == {"cta_group::1", "cta_group::2"}
    assert module.kernels["third"].cta_groups == frozenset()


@pytest.mark.parametrize("piece", [".entry k ", ".entry k(", ".weak ", ".extern\n", "{", "}", ".param .u64 .ptr "])
def test_a_text_that_never_ends_what_it_begins_is_scanned_in_one_pass(piece: str) -> None:
    """A quadratic expression would take hours."""
    ptx_module.scan(piece * (400_000 // len(piece)))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (".visible .entry first(", ".visible .entry (", "no readable name"),
        (".param .f32 x", ".param f32 x", "first: the parameter '.param f32 x' is not readable"),
        (".entry third", ".entry second", "second is defined twice"),
        (".entry third { ret; }", ".entry third { ret;", "the body of third is not closed"),
        (TEXT, ".version 8.7", "no .entry"),
    ],
)
def test_damaged_text_is_refused(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    with pytest.raises(ptx_module.PtxModuleError, match=problem):
        ptx_module.parse(TEXT.replace(old, new))
