"""Each micro-benchmark ends in the simulator, does as many operations as it claims, and is free of races."""

import re
import subprocess
from pathlib import Path

import pytest

from pytest_nvfp4.model.calibrate.benchmark import ARCHITECTURES, Benchmark, Machine
from pytest_nvfp4.model.calibrate.kernel import Body
from pytest_nvfp4.model.calibrate.plan import plan
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.toolchain import binaries
from tests.model.calibrate.simulated import Launched, benchmarks, launch, without

ARCHS = ("sm_90a", "sm_100a")
PER_OPERATION = {
    ("sm_90a", "tma.issue.8"): {"tma.load.requests": 8, "tma.load.bytes": 8 * 128},
    ("sm_90a", "tma.loop"): {"tma.load.requests": 0, "mbarrier.phases": 1},
    ("sm_90a", "tma.multicast.2"): {"tma.load.requests": 4, "tma.load.multicast.bytes": 2 * 256 * 128},
    ("sm_90a", "store.rate.8192"): {"bulk.store.requests": 1, "bulk.store.bytes": 8192},
    ("sm_90a", "shared.load.4"): {"shared.load.bytes": 4 * 512, "shared.load.conflicts": 0},
    ("sm_90a", "shared.stmatrix.4"): {"shared.store.bytes": 4 * 512, "shared.store.conflicts": 0},
    ("sm_90a", "shared.latency"): {"shared.load.requests": 1},
    ("sm_90a", "shared.store"): {"shared.store.requests": 1, "shared.store.wavefronts": 1},
    ("sm_90a", "global.load"): {"global.load.bytes": 16 * 512},
    ("sm_90a", "atomic"): {"global.atomic.requests": 1},
    ("sm_90a", "mbarrier.handover"): {"mbarrier.phases": 2, "mbarrier.arrivals": 2},
    ("sm_90a", "mbarrier.remote"): {"mbarrier.phases": 2, "mbarrier.arrivals": 2},
    ("sm_90a", "barrier.named.4"): {"barrier.cta.completions": 1},
    ("sm_90a", "barrier.cluster"): {"barrier.cluster.completions": 1},
    ("sm_90a", "fence.near"): {"fence.proxy.async.shared::cta": 1},
    ("sm_90a", "map.load.changed"): {"tensormap.copies": 1, "tma.load.requests": 1},
    ("sm_90a", "issue.fma.dependent"): {"instructions": (16 + 4) / 16},
    ("sm_90a", "mma.f16.ss.1.64.64.rate"): {"wgmma.instructions": 2, "wgmma.macs": 2 * 64 * 64 * 16},
    ("sm_100a", "tmem.load.32"): {"tcgen05.ld.words": 4 * 32 * 32},
    ("sm_100a", "tmem.store.8"): {"tcgen05.st.words": 4 * 32 * 8},
    ("sm_100a", "tmem.copy.rate"): {"tcgen05.cp.bytes": 512},
    ("sm_100a", "mma.f8f6f4.ss.1.128.64.latency"): {"mma.instructions": 1, "tcgen05.commits": 1},
    ("sm_100a", "mma.mxf4nvf4.ss.2.256.64.rate"): {"mma.instructions": 1, "mma.flops": 2 * 256 * 64 * 64},
}
"""What the units of the simulator count for each operation that the kernel counts."""


def wrong(benchmark: Benchmark, launched: Launched, point: int = -1) -> list[str]:
    """What a launch of a benchmark did wrong."""
    name, claimed = benchmark.name, benchmark.points[point].operations
    found = [f"{name}: {message}" for message in launched.findings]
    if set(launched.counts) != {claimed}:
        found.append(f"{name}: counted {launched.counts}, claims {claimed}")
    if not launched.ordered:
        found.append(f"{name}: the clocks are not in order")
    if benchmark.samples and not launched.samples.all():
        found.append(f"{name}: a sample is missing")
    return found


@pytest.mark.parametrize(("arch", "name"), PER_OPERATION)
def test_the_units_do_for_each_operation_what_is_measured(arch: str, name: str) -> None:
    """Two sizes, as in a slope: what the kernel does besides cancels."""
    benchmark = benchmarks(arch)[name]
    low, high = (launch(benchmark, arch, point=point) for point in (0, -1))
    operations = benchmark.points[-1].operations - benchmark.points[0].operations
    assert operations > 0
    for counter, per in PER_OPERATION[arch, name].items():
        assert high.units.get(counter, 0) - low.units.get(counter, 0) == per * operations, counter
    assert wrong(benchmark, high) == wrong(benchmark, low, point=0) == []


@pytest.mark.parametrize("name", ["l2.latency", "launch.programmatic"])
def test_a_benchmark_of_one_size_does_what_it_claims(name: str) -> None:
    benchmark = benchmarks("sm_90a")[name]
    assert not wrong(benchmark, launch(benchmark, "sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_benchmark_does_what_it_claims(arch: str) -> None:
    common = set(benchmarks(ARCHS[0])) & set(benchmarks(ARCHS[1])) - {"clock", "clock.sustained"}
    names = [name for name in benchmarks(arch) if arch == ARCHS[0] or name not in common]
    names = [name for name in names if not re.fullmatch(r"mma\..*\.128\.\w+", name)]  # those of N = 64 are the same
    chosen = benchmarks(arch)
    assert not [message for name in names for message in wrong(chosen[name], launch(chosen[name], arch))]


@pytest.mark.parametrize(
    ("arch", "name", "removed", "message"),
    [
        ("sm_90a", "mma.f16.ss.1.64.64.rate", "fence.proxy.async", "proxy"),
        ("sm_90a", "mma.f16.ts.1.64.64.rate", "wgmma.fence", "wgmma"),
        ("sm_90a", "store.rate.8192", "fence.proxy.async", "proxy"),
        ("sm_90a", "map.load.changed", "bar.warp.sync", ""),
        ("sm_100a", "mma.mxf4nvf4.ss.2.256.64.rate", "barrier.cluster.wait", ""),
        ("sm_100a", "mma.mxf4nvf4.ss.1.128.64.rate", "tcgen05.st.sync", ""),
        ("sm_100a", "tmem.load.32", "tcgen05.st.sync", "TMEM"),
    ],
)
def test_a_line_less_is_found(arch: str, name: str, removed: str, message: str) -> None:
    """Negative controls: the simulator judges these kernels as it does any other."""
    benchmark = benchmarks(arch)[name]
    try:
        found = launch(benchmark, arch, body=without(benchmark.body, removed)).findings
    except Fault as fault:
        found = [str(fault)]
    assert found
    assert any(message in text for text in found)


def test_a_ring_that_reuses_slots_too_early_is_found() -> None:
    """In the ring of a cluster, each CTA must have received a slot's data before it is loaded again."""
    benchmark = benchmarks("sm_90a")["tma.multicast.2"]
    timed = benchmark.body.timed
    start, end = timed.index("EMPTY:"), timed.index("mbarrier.arrive.expect_tx")
    body = Body(timed[:start] + timed[end:], benchmark.body.before, benchmark.body.after)
    try:
        launched = launch(benchmark, "sm_90a", body=body)
    except Fault:
        return
    assert launched.findings


@pytest.mark.parametrize("arch", ARCHITECTURES.values())
def test_each_launch_fits_its_gpu(arch: str) -> None:
    (capability,) = [key for key, value in ARCHITECTURES.items() if value == arch]
    machine = Machine.of(capability=capability, sms=132, l2_bytes=50 << 20, free_bytes=80 << 30, shared_bytes=232_448)
    names = [benchmark.name for benchmark in plan(machine)]
    assert len(set(names)) == len(names)
    for benchmark in plan(machine):
        assert benchmark.shared <= machine.shared_bytes
        assert benchmark.ctas % benchmark.cluster == 0
        assert len({point.operations for point in benchmark.points}) in (1, len(benchmark.points))
        if benchmark.tensor is not None:
            assert benchmark.tensor.rows * benchmark.tensor.pitch <= machine.data_bytes
            assert benchmark.tensor.rows & benchmark.tensor.rows - 1 == 0


def test_a_gpu_without_benchmarks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"8\.0; there are for 9\.0"):
        Machine.of(capability=(8, 0), sms=108, l2_bytes=40 << 20, free_bytes=40 << 30, shared_bytes=166_912)


def assembler(arch: str) -> Path | None:
    """ptxas, which triton's wheel has."""
    try:
        import triton
    except ImportError:
        return None
    tool = "ptxas-blackwell" if arch != "sm_90a" else "ptxas"
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    return path if path.is_file() else None


ASSEMBLED = {
    "sm_90a": r"tma\.multicast\.4|global\.load|map\.load\.changed|mma\.f16\.ts\.1\.64\.256\.rate",
    "sm_100a": r"tmem\.load\.128|tmem\.copy\.rate|mma\.mxf4nvf4\.ss\.2\.256\.256\.rate",
    "sm_103a": r"mma\.mxf4nvf4\.ss\.2\.256\.64\.latency",
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES.values())
def test_ptxas_assembles_kernels_without_a_warning(arch: str, tmp_path: Path) -> None:
    """Warnings count: ptxas waits for each wgmma where it cannot keep several in flight, and only says so."""
    tool = assembler(arch)
    if tool is None:
        pytest.skip("triton has no ptxas here")
    (capability,) = [key for key, value in ARCHITECTURES.items() if value == arch]
    machine = Machine.of(capability=capability, sms=132, l2_bytes=50 << 20, free_bytes=80 << 30, shared_bytes=232_448)
    chosen = [benchmark for benchmark in plan(machine) if re.fullmatch(ASSEMBLED[arch], benchmark.name)]
    assert chosen
    for benchmark in chosen:
        source = tmp_path / "kernel.ptx"
        source.write_text(benchmark.body.module(arch))
        command = [str(tool), "-arch", arch, str(source), "-o", str(tmp_path / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), f"{benchmark.name}: {done.stderr}"
        sass = binaries.run("nvdisasm", "-c", cubin=tmp_path / "kernel.cubin")
        assert "BRA.U.ANY" not in sass, f"{benchmark.name}: a loop over threads issues what one thread should"
        assert benchmark.name != "global.load" or not re.search(r"LDG\.E\.NA [^;]*;", sass), "loads are narrowed"
