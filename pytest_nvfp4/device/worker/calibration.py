"""Run the micro-benchmarks of ``model.calibrate`` on the GPU of this process, and print what was read.

``main`` is what the process of ``nvfp4 model calibrate`` runs, on this machine or on a remote. It prints lines of
``model.calibrate.readings``, and judges nothing. A kernel that faults takes the context with it, and the process ends;
the benchmarks behind it run in the next one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.device.gpus import GpuState, driver_version, gpu_state, visible_gpus
from pytest_nvfp4.device.worker.clock import GATE, GATE_NAME
from pytest_nvfp4.device.worker.driver_launches import Kernel, Shape, Stream, encode_rows
from pytest_nvfp4.device.worker.memory import CudaMemory, DriverError
from pytest_nvfp4.model.calibrate import signals
from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Machine, Point
from pytest_nvfp4.model.calibrate.kernel import ENTRY, RECORD_BYTES, RECORD_WORDS
from pytest_nvfp4.model.calibrate.plan import plan
from pytest_nvfp4.model.calibrate.readings import MARKER, Begun, Gpu, Line, Reading, Refusal, State, busy

REPEATS = 7
_WARM_UPS = 2
_GATES_NS = (4_000_000, 16_000_000, 64_000_000)
"""Times for which the stream is held while the host enqueues launches that are timed by events, until one is enough."""
_NOISE_BYTES = 8 << 20
_FLUSH_FACTOR = 3
_ATTRIBUTES = {"sms": 16, "l2_bytes": 38, "major": 75, "minor": 76, "shared_bytes": 97}
"""``CUdevice_attribute``: multiprocessors, L2 size, compute capability, shared memory of a CTA with opt-in."""
_NAME_BYTES = 256
_SILENCE_S = 40.0
"""Time that the compilation and the launches of one point of a benchmark never take."""
_MOST_REASON = 2000


def main() -> None:
    """Print the lines from the benchmark on whose number is the first argument. One that hangs ends the process."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML numbers the GPUs
    for line in lines(int(sys.argv[1])):
        sys.stdout.write(f"{MARKER}{line.model_dump_json()}\n")
        sys.stdout.flush()
        faulthandler.dump_traceback_later(_SILENCE_S, exit=True)
    faulthandler.cancel_dump_traceback_later()


def lines(first: int = 0) -> Iterator[Line]:
    """Yield the lines of a calibration of the first visible GPU, from a benchmark on.

    A benchmark that loses the GPU's context is the last one; the state ``after`` follows only if none did.
    """
    gpus = visible_gpus()
    if not gpus:
        yield Refusal(reason="there is no NVIDIA GPU that the process may use")
        return
    before = _state("before", gpu_state(gpus[0]))  # before this process uses the GPU
    yield before
    if busy(before):
        return
    try:
        bench = _Bench()
        machine = bench.gpu.machine()
        bench.prepare(machine)
    except (OSError, DriverError, ValueError) as error:
        yield Refusal(reason=f"the GPU cannot be used: {type(error).__name__}: {error}"[:_MOST_REASON])
        return
    yield bench.gpu
    for number, benchmark in enumerate(plan(machine)):
        if number < first:
            continue
        yield Begun(number=number)
        try:
            yield from bench.readings(benchmark, machine.arch)
        except DriverError as error:
            reason = f"benchmark {benchmark.name}: {error}"
            yield Refusal(benchmark=benchmark.name, reason=reason[:_MOST_REASON])
            return
    yield _state("after", gpu_state(gpus[0])).model_copy(update={"processes": None})


def _state(when: Any, found: GpuState) -> State:
    return State(
        when=when,
        processes=found.processes,
        utilisation=found.utilisation,
        throttled=found.throttled,
        sm_mhz=found.sm_mhz,
    )


class _Bench:
    """One GPU with the memory that the benchmarks work on."""

    def __init__(self) -> None:
        self._memory = CudaMemory()
        self._device = ctypes.c_int()
        self._memory.driver_call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        self._stream = Stream(self._memory)
        self._gate = Kernel(self._memory, GATE.rstrip(b"\0").decode(), GATE_NAME)
        values = {name: self._attribute(number) for name, number in _ATTRIBUTES.items()}
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._memory.driver_call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._memory.driver_call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), self._device)
        self.gpu = Gpu(
            name=name.value.decode(errors="replace"),
            capability=(values["major"], values["minor"]),
            driver=driver_version() or "unknown",
            sms=values["sms"],
            l2_bytes=values["l2_bytes"],
            free_bytes=free.value,
            shared_bytes=values["shared_bytes"],
            clusters=self._clusters(values),
        )

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._memory.driver_call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        return value.value

    def _clusters(self, values: dict[str, int]) -> dict[Any, int]:
        """Return the resident clusters by size, with one CTA an SM."""
        if values["major"] < 9:
            return {}
        kernel = Kernel(self._memory, signals.empty().module(f"sm_{values['major']}{values['minor']}"), ENTRY)
        shared = values["shared_bytes"] - 1024
        found = {str(size): kernel.resident_clusters(size, threads=128, shared=shared) for size in (2, 4, 8, 16)}
        kernel.unload()
        return found

    def _allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._memory.driver_call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def prepare(self, machine: Machine) -> None:
        """Allocate memory, and fill what is read with words that differ."""
        self._out_bytes = max(RECORD_BYTES * benchmark.ctas + 8 * benchmark.samples for benchmark in plan(machine))
        self._out, self._maps = self._allocate(self._out_bytes), self._allocate(1024)
        self._data = self._allocate(machine.data_bytes)
        self._flush_bytes = _FLUSH_FACTOR * self.gpu.l2_bytes // 4 * 4
        self._flush = self._allocate(self._flush_bytes)
        noise = np.random.default_rng(0).integers(0, 1 << 32, _NOISE_BYTES // 4, np.uint32).tobytes()
        filled = min(_NOISE_BYTES, machine.data_bytes)
        self._memory.write(self._data, noise[:filled])
        while filled < machine.data_bytes:
            size = min(filled, machine.data_bytes - filled)
            self._memory.driver_call(
                "cuMemcpyDtoD_v2",
                ctypes.c_uint64(self._data + filled),
                ctypes.c_uint64(self._data),
                ctypes.c_size_t(size),
            )
            filled += size

    def readings(self, benchmark: Benchmark, arch: str) -> Iterator[Line]:
        """Yield the readings of a benchmark, or why there are none. Raises DriverError if the context is lost."""
        try:
            kernel = Kernel(self._memory, benchmark.body.module(arch), ENTRY)
        except DriverError as error:
            yield Refusal(benchmark=benchmark.name, reason=str(error)[:_MOST_REASON])
            return
        if benchmark.tensor is not None:
            tensor = benchmark.tensor
            encoded = encode_rows(
                self._memory, self._data, rows=tensor.rows, pitch=tensor.pitch, box_rows=tensor.box_rows
            )
            self._memory.write(self._maps, encoded)
        for index, point in enumerate(benchmark.points):
            read = self._single if benchmark.launches == "one" else self._sequence
            yield read(kernel, benchmark, point, index)
        kernel.unload()

    def _launcher(self, kernel: Kernel, benchmark: Benchmark, words: tuple[int, int, int]) -> Callable[[], None]:
        parameters = tuple(address.to_bytes(8, "little") for address in (self._out, self._data, self._maps))
        parameters += tuple(word.to_bytes(4, "little") for word in words)
        shape = Shape(benchmark.ctas, benchmark.threads, benchmark.cluster, benchmark.shared)
        return kernel.launcher(
            shape, parameters, self._stream.handle, programmatic=benchmark.launches == "programmatic"
        )

    def _clear(self, address: int, size: int, word: int = 0) -> None:
        self._memory.driver_call(
            "cuMemsetD32Async",
            ctypes.c_uint64(address),
            ctypes.c_uint(word),
            ctypes.c_size_t(size // 4),
            self._stream.handle,
        )

    def _records(self, benchmark: Benchmark) -> NDArray[np.int64]:
        raw = self._memory.read(self._out, RECORD_BYTES * benchmark.ctas)
        return np.frombuffer(raw, np.int64).reshape(-1, RECORD_WORDS)

    def _single(self, kernel: Kernel, benchmark: Benchmark, point: Point, index: int) -> Reading:
        """Launch one kernel several times, and read its records each time."""
        launch = self._launcher(kernel, benchmark, (point.n, point.a, point.b))
        cycles, ns, samples = list[float](), list[float](), list[NDArray[np.float64]]()
        counts = set[int]()
        for repeat in range(_WARM_UPS + REPEATS):
            self._clear(self._out, self._out_bytes)
            if benchmark.cold:
                self._clear(self._flush, self._flush_bytes, repeat)
            self._stream.wait()
            launch()
            self._stream.wait()
            records = self._records(benchmark)
            counts |= {int(count) for count in records[:: benchmark.counting, 4]}
            if repeat < _WARM_UPS:
                continue
            cycles.append(float((records[:, 1] - records[:, 0]).max()))
            ns.append(float(records[:, 3].max() - records[:, 2].min()))
            if benchmark.gaps:
                samples.append(gaps(records))
            elif benchmark.samples:
                raw = self._memory.read(self._out + RECORD_BYTES, 4 * benchmark.samples)
                samples.append(np.frombuffer(raw, np.uint32).astype(np.float64))
        middle = _middle(samples)
        return Reading(
            benchmark=benchmark.name, point=index, cycles=tuple(cycles), ns=tuple(ns),
            operations=tuple(sorted(counts)[:64]), samples=middle,
        )  # fmt: skip

    def _sequence(self, kernel: Kernel, benchmark: Benchmark, point: Point, index: int) -> Line:
        """Launch ``n`` kernels one after the other, several times, between two events."""
        launch = self._launcher(kernel, benchmark, (1, 0, 0))

        def launches() -> None:
            for _ in range(point.n):
                launch()

        work = self._stream.graph(launches) if benchmark.launches == "graph" else launches
        ns, samples, counts = list[float](), list[NDArray[np.float64]](), set[int]()
        for repeat in range(_WARM_UPS + REPEATS):
            elapsed = self._held(work, flush=repeat if benchmark.cold else None)
            if elapsed is None:
                return Refusal(
                    benchmark=benchmark.name,
                    reason=f"benchmark {benchmark.name}: the host needs more than {_GATES_NS[-1] // 1_000_000} ms "
                    f"for {point.n} launches",
                )
            records = self._records(benchmark)
            counts.add(int(records[0, 6]))
            if repeat >= _WARM_UPS:
                ns.append(elapsed)
                samples.append(np.array([float(records[:, 3].max() - records[:, 2].min())]))
        return Reading(
            benchmark=benchmark.name, point=index, cycles=(0.0,) * len(ns), ns=tuple(ns),
            operations=tuple(sorted(counts)[:64]), samples=_middle(samples),
        )  # fmt: skip

    def _held(self, work: Callable[[], None], *, flush: int | None) -> float | None:
        """Return the nanoseconds of work that the host enqueued while the stream was held; None if it is too slow.

        L2 is emptied before, by writing the word ``flush`` to memory, unless that is None.
        """
        for gate_ns in _GATES_NS:
            if flush is not None:
                self._clear(self._flush, self._flush_bytes, flush)
            self._clear(self._out, self._out_bytes)
            self._gate.launcher(Shape(1, 1), (gate_ns.to_bytes(8, "little"),), self._stream.handle)()
            if (elapsed := self._stream.timed_ns(work)) is not None:
                return elapsed
        return None


def gaps(records: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cycles from the end of a CTA to the start of the next one on its SM, in ascending order.

    Args:
        records: One row a CTA: clocks at its start and end, two times, operations, SM.
    """
    found = list[int]()
    for sm in np.unique(records[:, 5]):
        own = records[records[:, 5] == sm]
        own = own[np.argsort(own[:, 0])]
        found += [int(value) for value in own[1:, 0] - own[:-1, 1] if value > 0]
    return np.sort(np.array(found, np.float64))


def _middle(samples: list[NDArray[np.float64]]) -> tuple[float, ...]:
    """Return the median of the repeats, sample by sample, of as many samples as all repeats have."""
    if not samples:
        return ()
    least = min(len(values) for values in samples)
    return tuple(float(value) for value in np.median(np.stack([values[:least] for values in samples]), axis=0))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
