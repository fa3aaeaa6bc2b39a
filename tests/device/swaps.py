"""Ways to swap the code that judges a kernel, each with the words that name it.

Every swap leaves the results as they are, so that nothing but the swap itself can be found.
"""

from __future__ import annotations

_FIND = """
import ctypes, sys
PACKAGE = "pytest" + "_nvfp4"
def module(name):
    return sys.modules[PACKAGE + "." + name]
def word(address):
    return ctypes.c_uint64.from_address(address)
"""

SWAPS = {
    "a function's code": (
        "F = module('device.worker.returned_tensors').read_tensor\nF.__code__ = F.__code__.replace(co_name='other')\n",
        "read_tensor",
    ),
    "a default": (
        "F = module('device.worker.buffers').CallBuffers.__init__\nF.__kwdefaults__ = dict(F.__kwdefaults__)\n",
        "CallBuffers.__init__",
    ),
    "an entry of the defaults": (
        "F = module('device.worker.buffers').CallBuffers.__init__\nF.__kwdefaults__['offset'] = 0.0\n",
        "CallBuffers.__init__",
    ),
    "a closure's cell": (
        "import contextlib\nF = contextlib.suppress\nG = contextlib.contextmanager\n"
        "def cells(space):\n"
        "    for value in list(vars(space).values()):\n"
        "        for cell in getattr(value, '__closure__', None) or ():\n"
        "            if callable(cell.cell_contents): yield cell\n"
        "CELL = next(cells(module('device.worker.simulator')))\nHELD = CELL.cell_contents\n"
        "CELL.cell_contents = lambda *a, **k: HELD(*a, **k)\n",
        "device.worker.simulator",
    ),
    "a method": (
        "C = module('device.worker.memory').HostMemory\nREAD = C.read\nC.read = lambda self, *a: READ(self, *a)\n",
        "HostMemory.read",
    ),
    "how attributes are looked up": (
        "C = module('device.worker.memory').HostMemory\n"
        "C.__getattribute__ = lambda self, name: object.__getattribute__(self, name)\n",
        "HostMemory",
    ),
    "a name of a module": (
        "M = module('device.worker.verify')\nREAL = M.plan_calls\nM.plan_calls = lambda *a, **k: REAL(*a, **k)\n",
        "device.worker.verify.plan_calls",
    ),
    "a name before a built-in one": (
        "module('device.worker.verify').len = lambda value: value.__len__()\n",
        "verify.len",
    ),
    "a built-in function": (
        "import builtins\nREAL = sorted\nbuiltins.sorted = lambda *a, **k: REAL(*a, **k)\n",
        "sorted",
    ),
    "a module": (
        "import types\nNAME = PACKAGE + '.device.worker.memory'\nFAKE = types.ModuleType(NAME)\n"
        "vars(FAKE).update(vars(sys.modules[NAME]))\nsys.modules[NAME] = FAKE\n",
        "the module pytest_nvfp4.device.worker.memory",
    ),
    "a pointer to code": (
        "F = module('device.worker.returned_tensors').read_tensor\nCODE = F.__code__.replace(co_name='other')\n"
        "ctypes.c_ssize_t.from_address(id(CODE)).value += 1000\nword(id(F) + 48).value = id(CODE)\n",
        "read_tensor",
    ),
    "bytecode": (
        "F = module('device.worker.returned_tensors').read_tensor\nC = F.__code__\n"
        "AT = id(C) + type(C).__basicsize__ + len(C.co_code) - 1\nctypes.memset(AT, 7, 1)\n",
        "read_tensor",
    ),
    "a constant": (
        "F = module('device.worker.memory').HostMemory.read\n"
        "TEXT = next(c for c in F.__code__.co_consts if isinstance(c, str))\n"
        "ctypes.memset(id(TEXT) + str.__sizeof__('') - 1, 100, 1)\n",
        "HostMemory.read",
    ),
    "a built-in function's entry": (
        "import os\nword(word(id(os.getpid) + 16).value + 8).value = word(word(id(os.getppid) + 16).value + 8).value\n",
        "getpid",
    ),
    "a slot of a built-in class": (
        "NUMBER = word(id(float) + 96).value\nword(NUMBER + 8 * 34).value = word(NUMBER + 8).value\n",
        "float",
    ),
    "an attribute of an object": (
        "FRAME = sys._getframe()\nwhile 'events' not in FRAME.f_locals: FRAME = FRAME.f_back\n"
        "E = FRAME.f_locals['events']\n"
        "REAL = E._encode\nE._encode = lambda value: REAL(value)\n",
        "_encode",
    ),
    "a function of a library": (
        "import json.encoder\nF = json.encoder.JSONEncoder.encode\nF.__code__ = F.__code__.replace(co_name='other')\n",
        "encode",
    ),
    "only while it is called": (
        "F = module('device.worker.returned_tensors').read_tensor\nBEFORE = F.__code__\n"
        "F.__code__ = BEFORE.replace(co_name='other')\nHONEST = custom_kernel\n"
        # longer than the keeper waits between two readings, also on a busy machine
        "def custom_kernel(data: input_t) -> output_t:\n    import time\n    time.sleep(12)\n"
        "    F.__code__ = BEFORE\n    return HONEST(data)\n",
        "read_tensor",
    ),
}
"""What a kernel does before its honest work, and a word of what is reported."""


def swapping(name: str) -> str:
    """The lines of a swap, to be added to a kernel."""
    return _FIND + SWAPS[name][0]
