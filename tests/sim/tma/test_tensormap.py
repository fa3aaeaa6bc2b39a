"""Changing tensor maps, and using changed ones."""

import dataclasses
import struct

import numpy as np
import pytest

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.programs import Programs
from pytest_nvfp4.sim.tma.map_changes import replaced
from pytest_nvfp4.sim.tma.tile import tile_of
from tests.driver.encoded_maps import FROM_DSL
from tests.sim.tma.changed_maps import (
    ACQUIRED,
    LOAD,
    MAP,
    NEW,
    OLD,
    PUBLISH,
    PUBLISHED,
    TO_SHARED,
    box,
    changes,
    run_changed,
    to_shared,
)
from tests.sim.tma.kernels import copy_out, expect, first, noise, prologue, run_tensor, wait
from tests.sim.tma.maps import Geometry

BASE = Geometry(ElementType.F16, (96, 40, 7, 6, 5), (208, 8320, 58240, 349440), (64, 16, 2, 3, 4), (1, 1, 2, 3, 4), 3)


def change(values: tuple[int, ...], ordinal: int, value: int) -> tuple[int, ...]:
    return (*values[:ordinal], value, *values[ordinal + 1 :])


@pytest.mark.parametrize("ordinal", range(5))
@pytest.mark.parametrize(
    ("field", "name", "value"),
    [("box_dim", "box", 256), ("global_dim", "dims", 0xFFFF_FFFF), ("element_stride", "steps", 8)],
)
def test_fields_by_ordinal_are_where_the_encoder_writes_them(field, name, value, ordinal):
    after = dataclasses.replace(BASE, **{name: change(getattr(BASE, name), ordinal, value)})
    assert replaced(BASE.encode(64), field, ordinal, value, what="t") == after.encode(64)


@pytest.mark.parametrize("ordinal", range(4))
def test_strides(ordinal):
    value = 0xAB_CDEF_0120
    after = dataclasses.replace(BASE, strides=change(BASE.strides, ordinal, value))
    assert replaced(BASE.encode(64), "global_stride", ordinal, value, what="t") == after.encode(64)


@pytest.mark.parametrize(
    ("field", "value", "changed"),
    [
        ("swizzle_mode", 1, {"swizzle": 1}),
        ("swizzle_atomicity", 3, {"atom": 3}),
        ("interleave_layout", 2, {"interleave": 2}),
        ("fill_mode", 1, {"fill": 1}),
        ("elemtype", 0, {"element": ElementType.U8}),
        ("elemtype", 10, {"element": ElementType.BF16}),
        ("elemtype", 11, {"element": ElementType.F32, "tf32": 1}),
        ("elemtype", 12, {"element": ElementType.F32_FTZ, "tf32": 1}),
        ("elemtype", 13, {"element": ElementType.FP4_PACKED}),
        ("elemtype", 14, {"element": ElementType.FP4_PADDED}),
        ("elemtype", 15, {"element": ElementType.FP6_PADDED}),
    ],
)
def test_codes(field, value, changed):
    assert replaced(BASE.encode(64), field, 0, value, what="t") == dataclasses.replace(BASE, **changed).encode(64)


def test_address_and_rank():
    assert replaced(BASE.encode(64), "global_address", 0, 0x7F00_1234_5670, what="t") == BASE.encode(0x7F00_1234_5670)
    words = struct.unpack("<16Q", replaced(BASE.encode(64), "rank", 0, 1, what="t"))
    assert words[1] >> 4 & 7 == 1


def test_a_map_made_from_zeros():
    data = bytes(128)
    fields = [("global_address", 0, 0x7F00_1234_5670), ("rank", 0, 1), ("elemtype", 0, 6), ("swizzle_mode", 0, 3)]
    fields += [("interleave_layout", 0, 0), ("fill_mode", 0, 0), ("global_stride", 0, 208)]
    fields += [("box_dim", i, v) for i, v in enumerate((64, 16))] + [("element_stride", i, 1) for i in range(2)]
    fields += [("global_dim", i, v) for i, v in enumerate((96, 40))]
    for field, ordinal, value in fields:
        data = replaced(data, field, ordinal, value, what="t")
    assert data[:64] == OLD.encode(0x7F00_1234_5670)[:64]
    assert data[64:] == bytes(64)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("rank", 5, "tensor map"),
        ("box_dim", 0, "tensor map"),
        ("box_dim", 257, "tensor map"),
        ("global_dim", 0, "tensor map"),
        ("element_stride", 9, "tensor map"),
        ("global_stride", 24, "tensor map"),
        ("global_stride", 1 << 40, "tensor map"),
        ("swizzle_mode", 4, "unsupported"),
        ("elemtype", 16, "unsupported"),
        ("fill_mode", 2, "unsupported"),
    ],
)
def test_values_that_a_field_cannot_hold(field, value, kind):
    with pytest.raises(Fault) as caught:
        replaced(BASE.encode(64), field, 0, value, what="t")
    assert caught.value.kind == kind


@pytest.mark.parametrize(("words", "said"), FROM_DSL)
def test_maps_that_the_dsl_wrote_are_tiles(words, said):
    tile = tile_of(struct.pack("<8Q", *words) + b"\xcc" * 64, what="load")
    element, dims, strides, box, swizzle = said
    assert (tile.map.element_type, tile.map.dims, tile.map.strides, tile.map.box, tile.map.swizzle) == (
        element, dims, strides, box, swizzle,
    )  # fmt: skip
    assert tile.bytes == np.prod(box) * element.bits // 8


# ---- from PTX --------------------------------------------------------------------------------------------------------


def test_a_map_changed_in_shared_memory_and_published_is_used():
    ran = run_changed()
    assert ran["out"][: OLD.bytes].tolist() == box(NEW, ran["y"])
    assert ran.grid.findings == []
    assert ran.grid.counters["tensormap.replaces"] == 4
    assert ran.grid.counters["tensormap.copies"] == 1


def test_only_the_half_of_a_map_that_holds_its_fields_must_have_been_written():
    ran = run_changed(copied=to_shared(64))
    assert ran["out"][: OLD.bytes].tolist() == box(NEW, ran["y"])
    assert ran.grid.findings == []
    with pytest.raises(Fault, match="was never written") as caught:
        run_changed(copied=to_shared(56))
    assert caught.value.kind == "uninitialised"


def test_a_map_that_was_not_acquired_is_found():
    ran = run_changed(acquire="")
    assert [f.kind for f in ran.grid.findings] == ["tensormap"]


def test_a_release_of_too_small_a_scope_is_found_between_clusters():
    """CTA 0 publishes, CTA 1 uses: release and acquire must be .gpu."""
    only = "mov.u32 %r50, %ctaid.x;\nsetp.ne.u32 %p5, %r50, 0;\n"
    flag = "ld.acquire.gpu.global.b32 %r51, [%rd103+128];\nsetp.eq.u32 %p6, %r51, 0;\n@%p6 bra SPIN;"
    for scope, kinds in (("gpu", []), ("cta", ["tensormap"])):
        publish = (
            only
            + "@%p5 bra OTHER;\n"
            + PUBLISH.format(scope=scope)
            + "\nmov.u32 %r52, 1;\nst.release.gpu.global.b32 [%rd103+128], %r52;\nOTHER:\nSPIN:\n"
            + flag
        )
        ran = run_changed(publish=publish, grid=(2, 1, 1))
        assert [f.kind for f in ran.grid.findings] == kinds, scope
        assert ran["out"][OLD.bytes :].tolist() == box(NEW, ran["y"])


RELEASE = "fence.proxy.tensormap::generic.release.gpu;"


@pytest.mark.parametrize(
    ("fences", "said"),
    [
        ((RELEASE, ACQUIRED), ""),
        ((RELEASE,), "has not acquired it"),
        ((ACQUIRED,), "never released"),
        ((), "has not acquired it"),
    ],
)
def test_a_map_changed_in_global_memory_needs_release_and_acquire(fences, said):
    body = "\n".join(
        [
            prologue(),
            changes("global", "%rd101"),
            *[one.replace("%rd103", "%rd101") for one in fences],
            first(expect(OLD.bytes) + "\n" + LOAD.format(map="%rd101")),
            wait(),
            copy_out(OLD.bytes, to="%rd103"),
        ]
    )
    extra = {"y": noise(NEW.extent + 64, 5), "out": np.zeros(OLD.bytes, np.uint8)}
    ran = run_tensor(body, OLD, extra=extra)
    assert ran["out"].tolist() == box(NEW, ran["y"])
    assert [f.kind for f in ran.grid.findings] == (["tensormap"] if said else [])
    assert all(said in f.message for f in ran.grid.findings)


def test_a_half_written_map_is_a_fault_with_the_decoders_words():
    with pytest.raises(Fault, match="not a valid tensor map") as caught:
        run_changed(publish="", acquire="", where="%rd103")
    assert caught.value.kind == "tensor map"


def test_a_generic_address_is_shared_or_global():
    body = "\n".join(
        [
            prologue(),
            TO_SHARED,
            f"cvt.u64.u32 %rd70, %r1;\ncvta.shared.u64 %rd71, %rd70;\nadd.u64 %rd71, %rd71, {MAP};",
            first("tensormap.replace.tile.global_dim.b1024.b32 [%rd71], 1, 20;"),
            first("tensormap.replace.tile.global_dim.b1024.b32 [%rd101], 0, 80;", "SECOND"),
            copy_out(128, start=MAP, to="%rd102"),
        ]
    )
    ran = run_tensor(body, OLD, extra={"out": np.zeros(128, np.uint8)})
    start = next(r.start for r in ran.grid.machine.memory if r.name == "x")
    assert ran["out"].tobytes() == dataclasses.replace(OLD, dims=(96, 20)).encode(start)
    assert ran["map"].tobytes() == dataclasses.replace(OLD, dims=(80, 40)).encode(start)


def test_a_map_in_a_kernel_parameter():
    module = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .align 128 .b8 tensormap[128], .param .u64 result)
{
.reg .pred %p<9>;
.reg .b32 %r<60>;
.reg .b64 %rd<110>;
mov.b64 %rd1, tensormap;
cvta.param.u64 %rd101, %rd1;
ld.param.u64 %rd102, [result];
prefetch.tensormap [%rd101];
BODY
ret;
}
""".replace(
        "BODY",
        "\n".join(
            [
                prologue(),
                first(expect(OLD.bytes) + "\n" + LOAD.format(map="%rd101")),
                wait(),
                copy_out(OLD.bytes),
            ]
        ),
    )
    machine = Machine()
    source, out = noise(OLD.extent + 128), np.zeros(OLD.bytes + 128, np.uint8)
    starts = [-(-array.ctypes.data // 64) * 64 for array in (source, out)]
    regions = [
        machine.memory.add(Region(name, start, size))
        for name, start, size in (("x", starts[0], OLD.extent), ("out", starts[1], OLD.bytes))
    ]
    grid = Grid(
        machine,
        Programs().get(module, "kernel"),
        shape=(1, 1, 1),
        block=(32, 1, 1),
        dynamic_shared=8192,
        parameters=(OLD.encode(starts[0]), starts[1].to_bytes(8, "little")),
    )
    grid.run()
    assert regions[1].data.tolist() == box(OLD, regions[0].data)
    assert grid.findings == []


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        ("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r1], %r2;", "immediate"),
        ("tensormap.replace.tile.global_dim.shared::cta.b1024.b64 [%r1], 0, %rd60;", "64 bits for global_dim"),
        ("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 5, %r2;", "ordinal 5"),
        ("tensormap.replace.tile.colour.shared::cta.b1024.b32 [%r1], 5;", "none of"),
        (PUBLISHED.replace("128;", "64;"), "128"),
    ],
)
def test_what_is_not_modelled_is_unsupported_by_name(issue, words):
    with pytest.raises(Unsupported, match=words):
        run_tensor(issue, OLD)


def test_operands_of_cp_fenceproxy_are_the_warps():
    issue = "cvt.u64.u32 %rd70, %r0;\nshl.b64 %rd70, %rd70, 7;\nadd.u64 %rd103, %rd103, %rd70;\n"
    with pytest.raises(Fault, match="different addresses") as caught:
        run_changed(publish=issue + PUBLISH.format(scope="gpu"))
    assert caught.value.kind == "divergence"
