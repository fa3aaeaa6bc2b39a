"""Roles of modes: what the rules know, and that they stay silent where they do not."""

from typing import Any

import pytest

from pytest_nvfp4.layout.grammar import parse_layout, parse_type
from pytest_nvfp4.layout.mode_changes import changed_modes
from pytest_nvfp4.layout.roles import base_name, roles_of

SA = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'
SFA_SMEM = '!cute.layout<"((((32,4),1),(16,4)),1,4,1):((((16,4),0),(0,1)),0,512,2048)">'
SFA_TMEM = '!cute.memref<f8E4M3FN, tmem, align<16>, "((((32,4),4),(16,4)),1,4):((((262144,4),8388608),(0,1)),0,16)">'
CG_SFA = (
    '!cute.coord_tensor<"(0,0,0,0)", "(((32,4),(16,4)),1,4,?,?,(1,?)):(((8@0,2@0),(0,1/2@0)),0,1@1,1@2,4@1,(0,1@3))">'
)
ACC = '!cute.memref<f32, tmem, align<16>, "((128,128),1,1):((65536,1),0,0)">'
ACC_STAGED = '!cute.memref<f32, tmem, align<16>, "((128,128),1,1,2):((65536,1),0,0,128)">'

# The right column is what NVIDIA's grouped_blockscaled_gemm.py and GPU MODE's template write beside each variable.
KNOWN = [
    ("kernel.sA", SA, "MMA MMA_M MMA_K STAGE"),
    ("kernel.sB", SA, "MMA MMA_N MMA_K STAGE"),
    ("host.a_smem_layout_staged", '!cute.composed_layout<"S<3,4,3> o 0 o ((128,64),1,4,1):((256,1),0,64,0)">',
     "MMA MMA_M MMA_K STAGE"),
    ("host.sfb_smem_layout_staged", SFA_SMEM, "MMA MMA_N MMA_K STAGE"),
    ("host.b_smem_layout", '!cute.composed_layout<"S<3,4,3> o 0 o ((128,64),1,4):((256,1),0,64)">', "MMA MMA_N MMA_K"),
    ("kernel.tCtSFA", SFA_TMEM, "MMA MMA_M MMA_K"),
    ("kernel.tCtSFB1", SFA_TMEM, "MMA MMA_N MMA_K"),
    ("kernel.tCgSFA", CG_SFA, "MMA MMA_M MMA_K RestM RestK RestL"),
    ("kernel.tCrB", '!cute_nvgpu.smem_desc_view<!cute_nvgpu.smem_desc, "(1,1,4,1):(0,0,2,0)">',
     "MMA MMA_N MMA_K STAGE"),
    ("kernel.tAsA", '!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((32768,1),1):((1,0),0)">', "TMA STAGE"),
    ("kernel.tAgA", '!cute.coord_tensor<"(0,0,0)", "(((256,128),1),?,?,?):(((1@0,1@1),0),128@1,256@0,1@2)">',
     "TMA RestM RestK RestL"),
    ("kernel.tBgB#2", '!cute.coord_tensor<"(0,?{div=128},0)", "(((256,128),1),?):(((1@0,1@1),0),256@0)">', "TMA RestK"),
    ("kernel.tCtAcc_fake", ACC, "MMA MMA_M MMA_N"),
    ("kernel.tCtAcc", ACC_STAGED, "MMA MMA_M MMA_N STAGE"),
    ("kernel.tCsSFA_compact_s2t", '!cute_nvgpu.smem_desc_view<!cute_nvgpu.smem_desc, '
     '"((((32,1,1),4),1),1,1,4,1):((((1,1,1),0),0),0,0,32,128)">', "S2T Rest_Tiler MMA_M MMA_K STAGE"),
    ("kernel.tDtAcc", '!cute.memref<f32, tmem, align<16>, "(((128,32),1),(1)):(((1,65536),0),(0))">', "T2R T2R_REST"),
    ("kernel.tDgC", '!cute.memref<f16, gmem, align<16>, "((128,1),1,1,1):((1,0),0,0,0)">', "T2R T2R_REST MMA_M MMA_N"),
    ("kernel.tSsSFB", '!cute_nvgpu.smem_desc_view<!cute_nvgpu.smem_desc, '
     '"((((32,1,1),4),1),1,1,4,3):((((1,1,1),0),0),0,0,32,128)">', "S2T Rest_Tiler MMA_N MMA_K STAGE"),
    ("host.sfb_layout", '!cute.layout<"(((32,4),?),((16,4),?),(1,1)):(((16,4),?{div=512}),((0,1),512),(0,0))">',
     "N K L"),
    ("kernel.mC_mn", '!cute.memref<f16, gmem, align<16>, "(?,?):(?{i64 div=128},1)">', "M N"),
    ("kernel.tRS_sC", '!cute.memref<f16, smem, align<16>, "((8,1),4,1,(1,2)):((1,0),8,0,(0,4096))">',
     "R2S R2S_M R2S_N PIPE_D"),
    ("kernel.gC_mnl", '!cute.memref<f16, gmem, align<16>, "(128,128,?,?,?):(?,1,?{div=128},128,?)">',
     "bM bN RestM RestN RestL"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "roles"), KNOWN, ids=[row[0] for row in KNOWN])
def test_modes_that_the_sources_name(name, text, roles):
    found = roles_of(name, parse_type(text))
    assert found is not None
    assert found.modes == tuple(roles.split())
    assert found.source


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernel.tmp", SA),  # no rule for the name
        ("kernel.tCtAcc", SA),  # the name says TMEM, the type shared memory
        ("kernel.sA", '!cute.memref<f16, smem, align<128>, "(128,64):(64,1)">'),  # a plain matrix: two modes
        ("kernel.sAlpha", SA),  # begins like sA
        # Four modes have two readings, of the template and of CUTLASS.
        ("kernel.tTR_tAcc", '!cute.memref<f32, tmem, align<16>, "(((128,32),1),1,1,1):(((1,65536),0),0,0,0)">'),
        ("kernel.tCtAcc", "!cute.ptr<f32, tmem, align<16>>"),  # no layout
    ],
)
def test_unknown_stays_unknown(name, text):
    assert roles_of(name, parse_type(text)) is None


def test_scale_factor_atom_is_named_down_to_its_rows():
    found = roles_of("host.sfa_smem_layout_staged", parse_type(SFA_SMEM))
    assert found is not None
    assert found.at((0, 0, 0, 0)) == "MMA.M % 32"
    assert found.at((0, 0, 0, 1)) == "MMA.M // 32 % 4"
    assert found.at((0, 1, 0)) == "MMA.K within a block of 16"
    assert found.at((0, 1, 1)) == "MMA.K block % 4"
    assert found.at((2,)) == "MMA_K"
    assert "cuBLAS" in found.source


def test_an_unfamiliar_atom_is_not_named():
    text = '!cute.layout<"((((16,8),1),(16,4)),1,4,1):((((16,4),0),(0,1)),0,512,2048)">'
    found = roles_of("host.sfa_smem_layout_staged", parse_type(text))
    assert found is not None
    assert found.at((0, 0, 0, 0)) == "MMA.M"


def test_base_name_forgets_scope_index_and_number():
    assert base_name("Kernel.__call__.self.sA[0]#2") == "sA"
    assert base_name("sA") == "sA"


def change(old: str, new: str, name: str = "kernel.sA", like: str = SA) -> list[Any]:
    """The changed modes between two layouts put into the type ``like``."""
    roles = roles_of(name, parse_type(like))
    return changed_modes(parse_layout(old), parse_layout(new), old_roles=roles, new_roles=roles)


def test_the_mode_that_changed_is_named_with_its_path():
    (found,) = change("((128,64),1,4,1):((256,1),0,64,0)", "((128,64),1,(4,2),1):((256,1),0,(64,32768),0)")
    assert (found.path, found.role) == ((2,), "MMA_K")
    assert (found.old, found.new) == ("4:64", "(4,2):(64,32768)")
    assert found.text() == "MMA_K (mode 2): 4:64 -> (4,2):(64,32768)"


def test_a_nested_mode_is_found_inside_its_parent():
    (found,) = change("((128,64),1,4,1):((256,1),0,64,0)", "((128,64),1,4,1):((512,1),0,64,0)")
    assert (found.path, found.role) == ((0, 0), "MMA.M")


def test_equal_layouts_have_no_changed_mode():
    assert change("((128,64),1,4,1):((256,1),0,64,0)", "((128,64),1,4,1):((256,1),0,64,0)") == ()


def test_an_added_stage_is_told_by_role():
    old, new = parse_type(ACC), parse_type(ACC_STAGED)
    name = "kernel.tCtAcc"
    found = changed_modes(old.layout, new.layout, old_roles=roles_of(name, old), new_roles=roles_of(name, new))
    assert [(item.role, item.old, item.new) for item in found] == [("STAGE", None, "2:128")]


def test_another_number_of_modes_without_roles_is_one_change_of_the_whole():
    found = changed_modes(parse_layout("(4,8):(1,4)"), parse_layout("(4,4,2):(1,4,16)"), old_roles=None, new_roles=None)
    assert [(item.path, item.role) for item in found] == [((), None)]
