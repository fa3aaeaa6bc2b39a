"""Runs one program on the GPU: ``python -m tests.silicon.sanitizer.child NAME [CUBIN]``; ``--device`` says what it is.

It prints a line ``RESULT right``, ``RESULT wrong N`` (so many words) or ``RESULT error TEXT``. Buffers are allocated
without redzones and ``w`` is not initialised, so that compute-sanitizer knows exactly what is whose.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from tests.silicon.driver import CudaError, Gpu, Launch
from tests.silicon.sanitizer.corpus import by_name
from tests.silicon.sanitizer.maps import MAPS
from tests.silicon.sanitizer.program import BUFFERS, Program, inputs

_GENERATE_LINE_INFO = 13  # CU_JIT_GENERATE_LINE_INFO


class BareGpu(Gpu):
    """Without redzones, and with lines."""

    def image(self, image: bytes) -> ctypes.c_void_p:
        """Load PTX or a cubin, keeping its lines, and find the kernel."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        options, values = (ctypes.c_int * 1)(_GENERATE_LINE_INFO), (ctypes.c_void_p * 1)(1)
        self._call(
            "cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(image), ctypes.c_uint(1), options, values
        )
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"kernel"))
        return function

    def exact(self, size: int) -> int:
        """An allocation of just this size, whose bytes nobody has written."""
        base = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(size))
        return base.value

    def fetch(self, address: int, size: int) -> bytes:
        """Copy bytes to the host."""
        room = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", room, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return room.raw


def run(program: Program, image: bytes) -> str:
    """The result in a word or two."""
    gpu = BareGpu()
    idiom = program.idiom
    data = inputs(idiom)
    address = {name: gpu.exact(data[name].nbytes) for name in BUFFERS}
    maps = b"".join(gpu.encode(spec, address[name]) for name, spec in MAPS)
    for name in BUFFERS:
        if name != "w":
            gpu.write(address[name], maps if name == "maps" else data[name].tobytes())
    try:
        gpu.launch(
            gpu.image(image),
            [address[name].to_bytes(8, "little") for name in BUFFERS],
            Launch((idiom.grid, 1, 1), (idiom.block, 1, 1), (idiom.cluster, 1, 1), idiom.shared),
        )
        y = np.frombuffer(gpu.fetch(address["y"], data["y"].nbytes), np.uint32)
    except CudaError as error:
        return f"error {error}"
    wrong = int((y != idiom.want(np.asarray(data["x"]))).sum())
    return "right" if not wrong else f"wrong {wrong}"


def main() -> None:
    """The command line."""
    if sys.argv[1] == "--device":
        gpu = Gpu()
        sys.stdout.write(json.dumps({"name": gpu.name, "capability": gpu.capability, "driver": gpu.driver}) + "\n")
        return
    program = by_name(sys.argv[1])
    image = Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else program.ptx.encode() + b"\0"
    sys.stdout.write(f"RESULT {run(program, image)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
