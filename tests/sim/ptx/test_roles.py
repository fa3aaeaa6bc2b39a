"""Results and sources of each family of opcodes, as the instruction's syntax line in the PTX ISA has them."""

import pytest

from pytest_nvfp4.sim.ptx import roles
from pytest_nvfp4.sim.ptx.roles import Rule

from .samples import kernel


def names(text: str) -> list[str]:
    """Results and sources of the only instruction, by name without the percent sign."""
    (ins,) = kernel(text + ";", before=".extern .func f ();").instructions
    return [" ".join(register.name[1:] for register in side) for side in (roles.results(ins), roles.sources(ins))]


TABLE = """
add.s32 %r1, %r2, %r3                                               | r1 | r2 r3
add.s32 %r1, %r1, 5                                                 | r1 | r1
@%p3 add.s32 %r1, %r2, %r3                                          | r1 | p3 r2 r3
fma.rn.f32x2 %rd1, %rd2, %rd3, %rd4                                 | rd1 | rd2 rd3 rd4
max.f32 %r1, %r2, %r3, %r4                                          | r1 | r2 r3 r4
mov.b64 {%r1, %r2}, %rd1                                            | r1 r2 | rd1
mov.b64 %rd1, {%r1, %r2}                                            | rd1 | r1 r2
mov.b64 {%r1, _}, %rd1                                              | r1 | rd1
mov.u32 %r1, %tid.x                                                 | r1 |
lop3.b32 %r1, %r2, %r3, %r4, 0xE4                                   | r1 | r2 r3 r4
lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0xE4, %p2                       | r1 p1 | r2 r3 r4 p2
setp.eq.s32 %p1, %r1, %r2                                           | p1 | r1 r2
setp.eq.and.s32 %p1|%p2, %r1, %r2, !%p3                             | p1 p2 | r1 r2 p3
selp.b32 %r1, %r2, %r3, %p1                                         | r1 | r2 r3 p1
and.pred %p1, !%p2, %p3                                             | p1 | p2 p3
cvt.rn.f16x2.f32 %r1, %r2, %r3                                      | r1 | r2 r3
cvta.to.shared::cluster.u64 %rd1, %rd2                              | rd1 | rd2
mapa.shared::cluster.u32 %r1, %r2, %r3                              | r1 | r2 r3
getctarank.shared::cluster.u32 %r1, %r2                             | r1 | r2
createpolicy.fractional.L2::evict_last.b64 %rd1, 1                  | rd1 |
ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+8]  | r1 r2 r3 r4 | rd1
ld.param.b32 %r1, [p0]                                              | r1 |
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3]          | r1 r2 | r3
st.global.v2.b32 [%rd1], {%r1, %r2}                                 | | rd1 r1 r2
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3] | | r1 r2 r3
st.bulk.shared::cta [%r1], %rd1, 0                                  | | r1 rd1
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2, %r3}          | | r1 r2 r3
atom.global.add.u32 %r1, [%rd1], %r2                                | r1 | rd1 r2
atom.global.add.noftz.v2.f32 {%r1, %r2}, [%rd1], {%r3, %r4}         | r1 r2 | rd1 r3 r4
atom.cas.b32 _, [%rd1], %r2, %r3                                    | | rd1 r2 r3
red.release.gpu.global.add.u32 [%rd1], %r1                          | | rd1 r1
red.async.relaxed.cluster.global.add.u32 [%r1], %r2, [%r3]          | | r1 r2 r3
redux.sync.add.s32 %r1, %r2, %r3                                    | r1 | r2 r3
shfl.sync.idx.b32 %r1, %r2, %r3, 31, %r4                            | r1 | r2 r3 r4
shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1                             | r1 p1 | r2
elect.sync _|%p1, -1                                                | p1 |
elect.sync %r1|%p1, %r2                                             | r1 p1 | r2
vote.sync.ballot.b32 %r1, %p1, -1                                   | r1 | p1
match.all.sync.b32 %r1|%p1, %r2, -1                                 | r1 p1 | r2
activemask.b32 %r1                                                  | r1 |
bar.sync %r1, %r2                                                   | | r1 r2
bar.warp.sync %r1                                                   | | r1
bar.red.popc.u32 %r1, 0, %r2, %p1                                   | r1 | r2 p1
barrier.cta.red.and.pred %p1, 0, %p2                                | p1 | p2
barrier.cta.arrive 1, %r1                                           | | r1
barrier.cluster.arrive.relaxed                                      | |
fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128              | | rd1
mbarrier.init.shared.b64 [%r1], %r2                                 | | r1 r2
mbarrier.inval.shared.b64 [%r1]                                     | | r1
mbarrier.arrive.shared.b64 %rd1, [%r1], %r2                         | rd1 | r1 r2
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r1], %r2 | | r1 r2
mbarrier.arrive.shared::cluster.b64 _, [%r1]                        | | r1
mbarrier.arrive_drop.noComplete.shared.b64 %rd1, [%r1], 1           | rd1 | r1
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2           | | r1 r2
mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], %r2 | | r1 r2
mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2, 10000000       | p1 | r1 r2
mbarrier.test_wait.shared.b64 %p1, [%r1], %rd1                      | p1 | r1 rd1
mbarrier.pending_count.b64 %r1, %rd1                                | r1 | rd1
cp.async.cg.shared.global [%r1], [%rd1], 16, %r2, %p1               | | r1 rd1 r2 p1
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1]                | | r1
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], %r2, [%r3], %rs1 \
    | | r1 rd1 r2 r3 rs1
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint \
    [%r1], [%rd1, {%r2, %r3}], [%r4], %rd2                          | | r1 rd1 r2 r3 r4 rd2
cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes \
    [%r1], [%rd1, {%r2, %r3, %r4}, {%rs1}], [%r5]                   | | r1 rd1 r2 r3 r4 rs1 r5
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r3] | | rd1 r1 r2 r3
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {%r1, %r2}], [%r3] | | rd1 r1 r2 r3
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}]  | | rd1 r1 r2
prefetch.tensormap [%rd1]                                           | | rd1
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 2, %r2 | | r1 r2
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r1], 128 | | rd1 r1
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2  | | r1 r2
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2              | | r1 r2
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned           | |
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3]             | r1 r2 | r3
tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r1, %r2}, %r3, [%r4] | r1 r2 r3 | r4
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r1], {%r2, %r3}             | | r1 r2 r3
tcgen05.wait::ld.sync.aligned                                       | |
tcgen05.fence::before_thread_sync                                   | |
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %rd1                  | | r1 rd1
tcgen05.shift.cta_group::1.down [%r1]                               | | r1
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %rs1 | | r1 rs1
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1 \
    | | r1 rd1 rd2 r2 r3 r4 p1
tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r2+40], %rd2, %r3, {%r4, %r5, %r6, %r7}, %p1 \
    | | r1 r2 rd2 r3 r4 r5 r6 r7 p1
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1, 1, 1, 0, 1 \
    | r1 r2 r3 r4 | r1 r2 r3 r4 rd1 rd2 p1
wgmma.wait_group.sync.aligned 0                                     | |
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1, %r2}, {%r3}, {%r4}, {%r1, %r2} | r1 r2 | r3 r4 r1 r2
multimem.ld_reduce.global.add.f32 %r1, [%rd1]                       | r1 | rd1
multimem.st.global.f32 [%rd1], %r1                                  | | rd1 r1
multimem.red.global.add.f32 [%rd1], %r1                             | | rd1 r1
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2] | | r1 r2
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %rd1   | p1 | rd1
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %rd1 | r1 r2 r3 | rd1
call (%r1), f, (%r2, 5)                                             | r1 | r2
call f, (%r1)                                                       | | r1
call (%r1), %rd1, (%r2)                                             | r1 | rd1 r2
setmaxnreg.inc.sync.aligned.u32 232                                 | |
griddepcontrol.wait                                                 | |
nanosleep.u32 %r1                                                   | | r1
@%p1 ret                                                            | | p1
@!%p1 trap                                                          | | p1
discard.global.L2 [%rd1], 128                                       | | rd1
applypriority.global.L2::evict_normal [%rd1], 128                   | | rd1
""".replace("\\\n", "").strip()


@pytest.mark.parametrize("line", TABLE.split("\n"))
def test_table(line):
    text, results, sources = line.replace("|%", "!!%").split("|")
    text = text.replace("!!%", "|%").strip()
    assert names(text) == [results.strip(), sources.strip()]


def test_an_opcode_without_a_rule_may_do_anything_with_what_it_names():
    text = "brandnew.op {%r1, %r2}, %r3|%p1, [%r4], [%rd1, {%r5}]"
    (ins,) = kernel(text + ";").instructions
    assert not roles.known(ins)
    assert names(text) == ["r1 r2 r3 p1", "r1 r2 r3 p1 r4 rd1 r5"]


@pytest.mark.parametrize(
    "opcode", ["addx", "tcgen05", "tcgen05.mmax", "wgmma", "mbarrier", "mbarrier.new", "multimem", "s"]
)
def test_a_prefix_ends_at_a_part(opcode):
    assert roles.rule(opcode) is Rule.UNKNOWN
