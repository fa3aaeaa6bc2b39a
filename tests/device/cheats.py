"""Ways to a forged answer, and the verdict on a kernel that uses them."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.problem import parse_shape

HONEST = (Path(__file__).parent / "kernels" / "honest.py").read_text()
CASES = (JobCase(problem=ProblemSpec.of(parse_shape("9x128x256")), family="pow2_exact"),)
CLIMBS = """
    while frame is not None:
        inputs = frame.f_locals.get("inputs")
        if hasattr(inputs, "groups"):
            for (_, _, c), group in zip(data[0], inputs.groups, strict=True):
                c[:, :, 0].copy_(torch.from_numpy(group.exact().rounded().copy()).to("cuda"))
            return [c for _, _, c in data[0]]
        frame = frame.f_back
"""
WRITES = """
import json, os, stat
def say(**event):
    for descriptor in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, (json.dumps(event) + "\\n").encode())
        except OSError:
            pass
"""
CHEATS = {
    "climbs frames": ("import sys\ndef custom_kernel(data):\n    frame = sys._getframe()" + CLIMBS, "frames"),
    "climbs from a traceback": (
        "def custom_kernel(data):\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        frame = error.__traceback__.tb_frame" + CLIMBS,
        "a frame (tb_frame)",
    ),
    "asks inspect": (
        "import inspect\ndef custom_kernel(data):\n    frame = inspect.currentframe()" + CLIMBS,
        "frames",
    ),
    "walks the stack": (
        "import traceback\ndef custom_kernel(data):\n    frame = next(traceback.walk_stack(None))[0]" + CLIMBS,
        "frames",
    ),
    "evaluates": (
        "import sys\ndef custom_kernel(data):\n    frame = eval('s._getframe()', {'s': sys})" + CLIMBS,
        "frames",
    ),
    "runs under another name": (
        "import json, sys\nSPACE = {'sys': sys}\n"
        "exec(compile('def look(): return sys._getframe()', json.__file__, 'exec'), SPACE)\n"
        "def custom_kernel(data):\n    frame = SPACE['look']()" + CLIMBS,
        "under the name of",
    ),
    "asks from a thread": (
        "import concurrent.futures, sys, threading\nMAIN = threading.get_ident()\n"
        "def custom_kernel(data):\n"
        "    with concurrent.futures.ThreadPoolExecutor(1) as pool:\n"
        "        frame = pool.submit(sys._current_frames).result()[MAIN]" + CLIMBS,
        "the frames of all threads",
    ),
    "asks through a library": (
        "import contextlib, sys\nFOUND = []\n"
        "with contextlib.ExitStack() as stack:\n    stack.callback(lambda f: FOUND.append(f()), sys._getframe)\n",
        "frames",
    ),
    "asks Python's own library": (
        "import ctypes\nctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p\n"
        "STATE = ctypes.pythonapi.PyThreadState_Get()\n",
        "PyThreadState_Get",
    ),
    "searches the heap": ("import gc\nFOUND = gc.get_objects()\n", "every object"),
    "traces": ("import sys\nsys.settrace(lambda *_: None)\nsys.settrace(None)\n", "every line"),
    "borrows the oracle": (
        "import sys\nORACLE = sys.modules['pytest' + '_nvfp4.numerics.oracle']\nimport numpy as np\n"
        "ORACLE.exact_product(a=np.zeros((1, 8), np.uint8), b=np.zeros((1, 8), np.uint8),"
        " sfa=np.zeros((1, 1), np.uint8), sfb=np.zeros((1, 1), np.uint8))\n",
        "oracle",
    ),
    "names another device": (
        WRITES + "say(event='device', name='NVIDIA B300', capability=[10, 0])\n",
        "wrote to its pipe",
    ),
    "measures itself": (
        WRITES + "say(event='measurement', case=0, device_us=[5.0] * 9, host_us=[9.0] * 9, call_us=1.0, late_rounds=0,"
        " method='x', l2='cold', sets=3)\n",
        "wrote to its pipe",
    ),
    "says when it ends": (WRITES + "say(event='end', sha256='0' * 64)\n", "wrote to its pipe"),
    "looks for the pipe": ("import os\nos.listdir('/proc/self/fd')\n", "reads /proc/self/fd"),
    "looks at the job's folder": ("import os\nos.listdir('..')\n", "none of its files"),
    "replaces outputs": ("import pathlib\npathlib.Path('../0-0.bin').write_bytes(b'')\n", "changes"),
    "edits the package": (
        "import contextlib, os, sys\nFILE = sys.modules['pytest' + '_nvfp4.numerics.oracle'].__file__\n"
        "with contextlib.suppress(OSError):\n    os.utime(FILE)\n",
        "oracle.py, which is none of its files",
    ),
    "encodes what is sent": (
        "import json\nREAL = json.dumps\njson.dumps = lambda *a, **k: REAL(*a, **k)\n",
        "json.dumps",
    ),
    "hashes": ("import hashlib\nREAL = hashlib.sha256\nhashlib.sha256 = lambda b=b'': REAL(b)\n", "hashlib.sha256"),
    "compares": ("import numpy\nnumpy.array_equal = lambda *_: True\n", "numpy.array_equal"),
    "hands out tensors": ("REAL = torch.zeros\ntorch.zeros = lambda *a, **k: REAL(*a, **k)\n", "torch.zeros"),
    "moves tensors": (
        "REAL = torch.Tensor.permute\ntorch.Tensor.permute = lambda self, *a: REAL(self, *a)\n",
        "Tensor.permute",
    ),
}
"""What a kernel does besides its honest work, and what is said of it."""
BESIDE = """
import collections, dataclasses, enum, inspect, logging, os, sys, tempfile, traceback, warnings
assert not os.path.exists("../job.json"), "it names the order of calls and the rounds whose outputs are looked at"
assert len(sys.argv) < 2, sys.argv
assert os.path.realpath(tempfile.gettempdir()).startswith(os.path.realpath("..")), "it goes with the job"
Pair = collections.namedtuple("Pair", "a b")
FRAMES = []
import contextlib, signal, threading
def handle(number, frame):
    FRAMES.append(frame)
old = signal.signal(signal.SIGUSR1, handle)
signal.raise_signal(signal.SIGUSR1)
assert signal.getsignal(signal.SIGUSR1) is handle and FRAMES == [None]
assert signal.signal(signal.SIGUSR1, old) is handle
thread = threading.Thread(target=logging.getLogger("thread").info, args=("x",))
thread.start(), thread.join()
exec(compile("TABLE = [1, 2]", __file__, "exec")), exec("OTHER = eval('1 + 1')")
with contextlib.ExitStack() as stack:
    stack.callback(logging.getLogger("stack").info, "x")
class Mode(enum.Enum):
    A = 1
@dataclasses.dataclass
class Plan:
    mode: Mode = Mode.A
torch.Tensor.helper_of_this_kernel = lambda self: self
def custom_kernel(data):
    logging.getLogger("kernel").warning("%s %s", Pair(1, 2), Plan())
    warnings.warn("slow", stacklevel=1)
    try:
        1 / 0
    except ZeroDivisionError:
        traceback.print_exc()
    traceback.format_stack()
    inspect.signature(work), inspect.getsource(work)
    with open("notes.txt", "w") as file:
        file.write("x")
    os.listdir(".")
    open(__file__).read(), open("/proc/cpuinfo").read(10)
    with tempfile.TemporaryDirectory() as folder:
        os.listdir(folder)
    return work(data)
"""


def verdict(tmp_path: Path, text: str) -> tuple[str, str]:
    device = LocalDevice(probe_folder=tmp_path / "probe", backend="host")
    path = tmp_path / "kernel.py"
    path.write_text(text)
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    job = Job(id="t", action="verify", kernel=spec, cases=CASES, order_seed=7, deadline_s=120)
    folder = tmp_path / "job"
    folder.mkdir()
    result = device.run(job, folder=folder, base=base)
    (found,) = Judge().judge(job, result, folder=folder)
    return found.status, "\n".join(map(str, found.findings))
