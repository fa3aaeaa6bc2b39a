"""Kernels of barriers, fences, tensor maps, issue slots and empty launches.

Sources: PTX ISA, "mbarrier", "barrier", "barrier.cluster", "membar / fence", "tensormap.replace",
"tensormap.cp_fenceproxy", "griddepcontrol".
"""

from __future__ import annotations

from pytest_nvfp4.model.calibrate.kernel import CLUSTER_MEET, RECORD_BYTES, Body, first_thread, loop, wait

CHAIN = 16
"""Dependent or independent instructions in one execution of a loop's body."""
_MAP_BYTES = 128
_BARRIER = 512
"""Offset of an mbarrier in shared memory, behind the map."""


def mbarrier_round() -> Body:
    """Return ``n`` phases of an mbarrier that one thread completes and waits for."""
    body = [
        "mbarrier.arrive.shared::cta.b64 _, [%smem];",
        wait("%smem", "%parity", "WAIT"),
        "xor.b32 %parity, %parity, 1;",
    ]
    return Body(first_thread(loop("\n".join(body)), "IDLE"), before=_barriers(1))


def mbarrier_arrivals() -> Body:
    """Return ``n`` arrivals of one thread at an mbarrier of which each completes a phase."""
    return Body(first_thread(loop("mbarrier.arrive.shared::cta.b64 _, [%smem];"), "IDLE"), before=_barriers(1))


def mbarrier_handover() -> Body:
    """Return ``n`` exchanges of two warps through two mbarriers: two arrivals that the other warp waits for."""
    body = [
        "setp.eq.u32 %p4, %warp, 0;",
        "and.b32 %r10, %thread, 31;",
        "setp.ne.u32 %p5, %r10, 0;",
        "@%p5 bra IDLE;",
        "xor.b32 %r11, %warp, 1;",
        "mad.lo.u32 %r12, %warp, 8, %smem;",
        "mad.lo.u32 %r13, %r11, 8, %smem;",
        loop(
            "\n".join(
                [
                    "@%p4 mbarrier.arrive.shared::cta.b64 _, [%r13];",
                    wait("%r12", "%parity", "WAIT"),
                    "@!%p4 mbarrier.arrive.shared::cta.b64 _, [%r13];",
                    "xor.b32 %parity, %parity, 1;",
                ]
            )
        ),
        "IDLE:",
    ]
    return Body("\n".join(body), before=_barriers(2))


def remote_handover() -> Body:
    """Return ``n`` exchanges of two CTAs of a cluster through an mbarrier of each: two remote arrivals."""
    timed = [
        "setp.eq.u32 %p4, %rank, 0;",
        "xor.b32 %r11, %rank, 1;",
        "mapa.shared::cluster.u32 %r12, %smem, %r11;",
        loop(
            "\n".join(
                [
                    "@%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];",
                    wait("%smem", "%parity", "WAIT").replace(".acquire.cta.", ".acquire.cluster."),
                    "@!%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];",
                    "xor.b32 %parity, %parity, 1;",
                ]
            )
        ),
    ]
    return Body(first_thread("\n".join(timed), "IDLE"), before=f"{_barriers(1)}\n{CLUSTER_MEET}", after=CLUSTER_MEET)


def _barriers(count: int) -> str:
    lines = [f"mbarrier.init.shared::cta.b64 [%smem+{8 * number}], 1;" for number in range(count)]
    return f"{first_thread(chr(10).join([*lines, 'fence.mbarrier_init.release.cluster;']), 'INITIALISED')}\nbar.sync 0;"


def named_barrier(warps: int) -> Body:
    """Return ``n`` times barrier 1 of all warps."""
    return Body(loop(f"bar.sync 1, {32 * warps};"))


def cluster_barrier() -> Body:
    """Return ``n`` times the barrier of a cluster."""
    return Body(loop(CLUSTER_MEET))


def fence(opcode: str, *, stores: str) -> Body:
    """Return ``n`` times a store to ``global`` or ``shared`` memory by the first thread, and a fence unless empty."""
    store = {"global": "st.global.u32 [%rd2], %i;", "shared": "st.shared.u32 [%smem+8], %i;"}[stores]
    before = [f"mul.wide.u32 %rd2, %cta, {RECORD_BYTES};", "add.u64 %rd2, %out, %rd2;", "add.u64 %rd2, %rd2, 56;"]
    return Body(first_thread(loop(f"{store}\n{opcode};" if opcode else store), "IDLE"), before="\n".join(before))


def map_change(*, published: bool) -> Body:
    """Return ``n`` changes of a tensor map's address in shared memory, each published to global memory or not."""
    return Body(loop("\n".join(_publication() if published else _publication()[:-1])), before=_map_in_shared())


def map_load(*, changed: bool, acquired: bool) -> Body:
    """Return ``n`` loads of a box of eight rows, of which each is waited for.

    Args:
        changed: Whether the tensor map is changed before each, as in `map_change`.
        acquired: Whether a fence acquires the map before each. What it takes shows in the load, which reads the map.
    """
    acquire = f"fence.proxy.tensormap::generic.acquire.gpu [%maps], {_MAP_BYTES};"
    load = [
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem+{_BARRIER}], {8 * 128};",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[%smem+1024], [%maps, {{0, 0}}], [%smem+{_BARRIER}];",
    ]
    body = [
        *(_publication() if changed else []),
        *([acquire] if acquired else []),
        first_thread("\n".join(load), "LOADING"),
        f"add.u32 %r12, %smem, {_BARRIER};",
        wait("%r12", "%parity", "LOADED"),
        "xor.b32 %parity, %parity, 1;",
        "bar.warp.sync 0xffffffff;",
    ]
    barrier = f"mbarrier.init.shared::cta.b64 [%smem+{_BARRIER}], 1;\nfence.mbarrier_init.release.cluster;"
    before = [acquire, first_thread(barrier, "INITIALISED"), _map_in_shared()]
    return Body(loop("\n".join(body)), before="\n".join(before))


def _map_in_shared() -> str:
    """Return a copy of the tensor map to shared memory by the first warp, a word each thread."""
    return "\n".join(
        [
            "mul.wide.u32 %rd2, %thread, 4;",
            "add.u64 %rd2, %maps, %rd2;",
            "ld.global.u32 %r10, [%rd2];",
            "mad.lo.u32 %r11, %thread, 4, %smem;",
            "st.shared.u32 [%r11], %r10;",
            "bar.sync 0;",
        ]
    )


def _publication() -> list[str]:
    return [
        first_thread(
            "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%smem], %data;",
            "REPLACED",
        ),
        "bar.warp.sync 0xffffffff;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        f"[%maps], [%smem], {_MAP_BYTES};",
    ]


_OPCODES = {
    "alu": ("add.u32 %r{0}, %r{0}, %a;", "xor.b32 %r{0}, %r{0}, %b;"),
    "fma": ("fma.rn.f32 %f{0}, %f{0}, %f{0}, %f20;",) * 2,
    "special": ("ex2.approx.ftz.f32 %f{0}, %f{0};",) * 2,
    "convert": ("cvt.rn.f32.u32 %f{0}, %r{0};\nmov.b32 %r{0}, %f{0};",) * 2,
}
"""Two instructions of a class in turn, which the compiler cannot merge. A ``mov`` between types is none in SASS."""
CLASSES = tuple(_OPCODES)
"""Classes of instructions (``recording.INSTRUCTION_CLASSES``) that `issue_slots` measures."""


def issue_slots(kind: str, *, dependent: bool) -> Body:
    """Return ``n`` times 16 instructions of a class by each warp.

    Args:
        kind: One of `CLASSES`.
        dependent: Whether each needs the result of the one before; else eight chains take turns.
    """
    chains = 1 if dependent else 8
    lines = [_OPCODES[kind][number // chains % 2].format(number % chains) for number in range(CHAIN)]
    before = ["cvt.rn.f32.u32 %f20, %a;"]
    for chain in range(8):
        before += [f"cvt.rn.f32.u32 %f{chain}, %thread;", f"add.u32 %r{chain}, %thread, {chain};"]
    kept = ["mov.f32 %f21, 0f00000000;", "mov.b32 %r20, 0;"]
    kept += [f"add.f32 %f21, %f21, %f{chain};\nadd.u32 %r20, %r20, %r{chain};" for chain in range(8)]
    kept += [
        "setp.eq.f32 %p2, %f21, 0f7F7FFFFF;",
        "setp.eq.u32 %p3, %r20, 0x5A5A5A5A;",
        "or.pred %p2, %p2, %p3;",
        "@%p2 st.global.u32 [%out+48], %r20;",
    ]
    return Body(loop("\n".join(lines), counted=CHAIN), before="\n".join(before), after="\n".join(kept))


def empty(*, programmatic: bool = False) -> Body:
    """Return a kernel that adds 1 to word 6 of the first record, after the kernel before it if programmatic."""
    lines = ["griddepcontrol.launch_dependents;", "griddepcontrol.wait;"] if programmatic else []
    add = "setp.eq.u32 %p1, %cta, 0;\nand.pred %p1, %p1, %first;\n@%p1 red.global.add.u64 [%out+48], 1;"
    return Body("\n".join([*lines, "add.u32 %count, %count, 1;", add]))
