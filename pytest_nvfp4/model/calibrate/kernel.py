"""PTX of a micro-benchmark's kernel: parameters, clocks and the record that each CTA writes.

Every kernel has the same parameters: ``out`` (records, then samples), ``data`` (global memory to work on), ``maps``
(tensor maps), and three words ``n``, ``a`` and ``b``. A CTA's record is eight words of 64 bits: ``%clock64`` and
``%globaltimer`` before and after the timed part, the operations that its first thread counted, and ``%smid``. The first
thread is the elected one of warp 0.
Sources: PTX ISA, "Special Registers: %clock64", "%globaltimer".
"""

from __future__ import annotations

from dataclasses import dataclass

ENTRY = "bench"
RECORD_WORDS = 8
RECORD_BYTES = 8 * RECORD_WORDS
_VERSIONS = {"sm_103a": "8.8"}
_VERSION = "8.7"
"""Version of the PTX ISA: the first with the NVFP4 kinds of sm_100a; sm_103a needs a later one."""

_MODULE = """
.version {version}
.target {arch}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry {entry}(.param .b64 p_out, .param .b64 p_data, .param .b64 p_maps,
                        .param .b32 p_n, .param .b32 p_a, .param .b32 p_b){directives}
{{
.reg .pred %p<10>, %chief, %elected, %first;
.reg .b16 %mask;
.reg .b32 %r<200>, %n, %a, %b, %thread, %warp, %cta, %rank, %smem, %i, %count, %parity, %tmem;
.reg .b64 %rd<20>, %out, %data, %maps, %c0, %c1, %g0, %g1, %total;
.reg .f32 %f<200>;
ld.param.b64 %out, [p_out];
ld.param.b64 %data, [p_data];
ld.param.b64 %maps, [p_maps];
ld.param.b32 %n, [p_n];
ld.param.b32 %a, [p_a];
ld.param.b32 %b, [p_b];
cvta.to.global.u64 %out, %out;
cvta.to.global.u64 %data, %data;
mov.u32 %thread, %tid.x;
shr.u32 %warp, %thread, 5;
shfl.sync.idx.b32 %warp, %warp, 0, 31, 0xffffffff;
setp.eq.u32 %chief, %warp, 0;
elect.sync %r0|%elected, 0xffffffff;
and.pred %first, %chief, %elected;
mov.u32 %cta, %ctaid.x;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %smem, smem;
mov.b32 %count, 0;
mov.b32 %i, 0;
mov.b32 %parity, 0;
{before}
bar.sync 0;
mov.u64 %g0, %globaltimer;
mov.u64 %c0, %clock64;
{timed}
bar.sync 0;
mov.u64 %c1, %clock64;
mov.u64 %g1, %globaltimer;
{after}
@!%first bra DONE;
mul.wide.u32 %rd0, %cta, {record};
add.u64 %rd0, %out, %rd0;
cvt.u64.u32 %total, %count;
mov.u32 %r0, %smid;
cvt.u64.u32 %rd1, %r0;
st.global.u64 [%rd0], %c0;
st.global.u64 [%rd0+8], %c1;
st.global.u64 [%rd0+16], %g0;
st.global.u64 [%rd0+24], %g1;
st.global.u64 [%rd0+32], %total;
st.global.u64 [%rd0+40], %rd1;
DONE:
ret;
}}
"""

CLUSTER_MEET = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
"""Both halves of a barrier of the cluster, which every thread executes."""


@dataclass(frozen=True, slots=True)
class Body:
    """Parts of a kernel.

    Attributes:
        timed: What lies between the clocks. The first thread adds to ``%count`` for each operation.
        before: Initialisation of shared memory, barriers and tensor memory.
        after: Release of what ``before`` took.
        directives: Performance directives of the entry, such as ``.maxntid 128``.
    """

    timed: str
    before: str = ""
    after: str = ""
    directives: str = ""

    def module(self, arch: str) -> str:
        """Return the text of a module for an architecture."""
        return _MODULE.format(
            version=_VERSIONS.get(arch, _VERSION),
            arch=arch,
            entry=ENTRY,
            record=RECORD_BYTES,
            directives=f"\n{self.directives}" if self.directives else "",
            before=self.before,
            timed=self.timed,
            after=self.after,
        )


def first_thread(body: str, label: str) -> str:
    """Return a body that only the first thread executes.

    A branch of the whole warp and one on ``elect.sync``: ptxas knows then that one thread is left, and issues copies
    and matrix instructions from uniform registers. Else it puts a loop over the threads around each.
    """
    return f"@!%chief bra {label};\n@!%elected bra {label};\n{body}\n{label}:"


def wait(address: str, parity: str, label: str) -> str:
    """Return a loop that waits for a phase of an mbarrier."""
    return (
        f"{label}:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p9, [{address}], {parity};\n"
        f"@!%p9 bra {label};"
    )


def loop(body: str, *, label: str = "LOOP", counted: int = 1) -> str:
    """Return ``n`` executions of a body, with ``%i`` as the index, each of which adds to ``%count``."""
    return (
        f"setp.ge.u32 %p8, %i, %n;\n@%p8 bra {label}_END;\n{label}:\n{body}\nadd.u32 %count, %count, {counted};\n"
        f"add.u32 %i, %i, 1;\nsetp.lt.u32 %p8, %i, %n;\n@%p8 bra {label};\n{label}_END:"
    )


def fill_shared(start: int, size: int, *, threads: int, mask: int = 0xFFFF_FFFF, base: int = 0) -> str:
    """Return stores of pseudo-random words to shared memory, ordered before asynchronous reads of it.

    Units that compute are timed on bits that differ: an H200 multiplies zeros faster than other numbers.

    Args:
        start: First byte, from the start of dynamic shared memory.
        size: Bytes, a multiple of 16.
        threads: Threads of the CTA.
        mask: Bits of each word that may vary; they keep every element finite.
        base: Bits that are set in each word.
    """
    lines = ["shl.b32 %r0, %thread, 4;", f"mul.lo.u32 %r1, %thread, {0x9E3779B1};"]
    label = f"FILL{start}"
    lines += [f"{label}:", f"setp.ge.u32 %p0, %r0, {size};", f"@%p0 bra {label}_END;", "add.u32 %r2, %smem, %r0;"]
    for word in range(4):
        lines += [f"mad.lo.u32 %r1, %r1, {1664525}, {1013904223};", "shf.l.wrap.b32 %r3, %r1, %r1, 13;"]
        lines += [f"and.b32 %r3, %r3, {mask:#x};", f"or.b32 %r{4 + word}, %r3, {base:#x};"]
    lines += [f"st.shared.v4.b32 [%r2+{start}], {{%r4, %r5, %r6, %r7}};"]
    lines += [f"add.u32 %r0, %r0, {16 * threads};", f"bra {label};", f"{label}_END:", "fence.proxy.async.shared::cta;"]
    return "\n".join(lines)
