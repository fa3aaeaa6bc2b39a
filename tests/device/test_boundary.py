"""The kernel's process and the machine's: what a kernel can do to the device is what it can request."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("torch")

HONEST = (Path(__file__).parent / "kernels" / "honest.py").read_text()
AROUND = HONEST.replace("def custom_kernel(", "def work(")
SOCKETS = """
import os, socket, stat, struct
def sockets():
    for descriptor in range(3, 200):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                yield descriptor
        except OSError:
            pass
def frame(text):
    return struct.pack("<QQ", len(text), 0) + text.encode()
"""


def verdict(tmp_path: Path, text: str) -> tuple[Result, CaseVerdict]:
    """What the job of a kernel on the simulated device gives."""
    path = tmp_path / "kernel.py"
    path.write_text(text)
    spec, base = KernelSpec.from_files(path, arch="sm_100a", torch_operators=True)
    cases = (JobCase(problem=ProblemSpec.of(parse_shape("9x128x256")), family="pow2_exact"),)
    job = Job(id="t", action="verify", kernel=spec, cases=cases, order_seed=7, deadline_s=300)
    folder = tmp_path / "job"
    folder.mkdir()
    result = SimDevice().run(job, folder=folder, base=base)
    (found,) = Judge().judge(job, result, folder=folder)
    return result, found


HARMLESS = """
import ctypes, os, sys, threading
def custom_kernel(data):
    c = data[0][0][2]
    child = os.fork()  # host code that dereferences a device address
    if not child:
        ctypes.memset(c.data_ptr(), 0, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11
    child = os.fork()  # a fork has no device
    if not child:
        try:
            c.cpu()
        except RuntimeError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for bad in (lambda: torch.ops.aten.set_.source_Tensor(c, c), lambda: c + torch.ones(2), lambda: c[[10**6]],
                lambda: torch.ops.aten._index_put_impl_(c, [c[0].long()], c, False, True)):
        try:
            bad()
        except Exception as error:
            assert "internal" not in str(error)
        else:
            raise AssertionError("it was executed")
    results, zeros = {}, torch.zeros(64, device="cuda")
    def add(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = zeros + float(n)
            for _ in range(20):
                x = x + 1
            results[n] = x.sum().item()
    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert results == {n: 64.0 * (n + 20) for n in range(4)}, results
    torch.manual_seed(3); one = torch.randn(5, device="cuda"); torch.manual_seed(3)
    assert torch.equal(one, torch.randn(5, device="cuda")) and not torch.equal(one, torch.randn(5, device="cuda"))
    host = torch.zeros(2, 3).t()
    host.copy_(torch.arange(6.0, device="cuda").view(3, 2))
    assert host.tolist() == [[0, 1], [2, 3], [4, 5]] and list(host.stride()) == [1, 3]
    parts = torch.arange(6, device="cuda").split(2)
    values, places = torch.tensor([3.0, 1.0], device="cuda").sort()
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]] and places.tolist() == [1, 0]
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda").fill_(1)
    except Exception:
        pass
    return work(data)
"""


@pytest.mark.slow
def test_what_a_kernel_may_do_it_can(tmp_path: Path) -> None:
    result, found = verdict(tmp_path, AROUND + HARMLESS)
    assert (result.status, found.status) == ("passed", "passed"), (result.findings, found.findings, result.stderr)


FORGES = """
import ctypes, gc, os, sys
libc = ctypes.CDLL(None)
def custom_kernel(data):
    c = data[0][0][2]
    start = c.data_ptr() // 4096 * 4096
    libc.mmap.restype = ctypes.c_void_p  # memory of its own where the device's lies
    libc.mmap(ctypes.c_void_p(start), ctypes.c_size_t(8192), 3, 0x32, -1, ctypes.c_long(0))
    ctypes.memset(c.data_ptr(), 0, 64)
    from torch import Tensor
    for module in list(sys.modules.values()):  # what judged in this process before
        if getattr(module, "__name__", "").startswith("pytest" + "_nvfp4.sim"):
            for name in list(vars(module)):
                if name in ("Session", "Region", "Grid", "Fault"):
                    setattr(module, name, None)
    for at in range(3, 60):
        try:
            os.write(at, b'{"event": "status", "status": "passed"}\\n') if at not in set(sockets()) else None
        except OSError:
            pass
    return [c for _, _, c in data[0]]
"""


def test_what_it_writes_in_its_own_process_is_not_the_device(tmp_path: Path) -> None:
    _, found = verdict(tmp_path, AROUND + SOCKETS + FORGES)
    assert found.status in ("failed", "cheated"), found
    if found.status == "failed":
        assert "poison" in str(found.findings[0])


ENDS = {
    "dereferences": (
        "import ctypes\ndef custom_kernel(data):\n    return ctypes.string_at(data[0][0][2].data_ptr(), 8)\n",
        "crashed",
        "device memory, which host code",
    ),
    "closes": (
        SOCKETS + "def custom_kernel(data):\n    [os.close(each) for each in list(sockets())]\n    import time\n"
        "    time.sleep(60)\n",
        "cheated",
        "closed its connection",
    ),
    "floods": (
        SOCKETS + "def custom_kernel(data):\n    [os.write(each, b'x' * 100_000) for each in sockets()]\n",
        "cheated",
        "broke the protocol",
    ),
    "asks for what is not": (
        SOCKETS + 'def custom_kernel(data):\n    text = \'{"kind": "poke"}\'\n'
        "    [os.write(each, frame(text)) for each in sockets()]\n",
        "cheated",
        "broke the protocol",
    ),
    "answers for itself": (
        SOCKETS + "def custom_kernel(data):\n"
        '    text = \'{"kind": "returned", "returned": [["c", null]]}\'\n'
        "    [os.write(each, frame(text)) for each in sockets()]\n"
        "    import time; time.sleep(60)\n",
        "failed|cheated",
        "",
    ),
    "returns what is no device tensor": (
        "import torch\ndef custom_kernel(data):\n    own = torch.empty_like(data[0][0][2])\n"
        "    own.host = torch.zeros(9, 128, 1, dtype=torch.float16)  # memory of its own\n"
        "    return [own]\n",
        "cheated",
        "no device tensor",
    ),
    "leaves": ("import os\ndef custom_kernel(data):\n    os._exit(0)\n", "crashed", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_its_process_is_that_of_the_job(tmp_path: Path, name: str) -> None:
    text, status, words = ENDS[name]
    _, found = verdict(tmp_path, text)
    said = "\n".join(map(str, found.findings))
    assert found.status in status.split("|"), said
    assert words in said
    if name == "dereferences":
        assert any(finding.line == 3 for finding in found.findings), found.findings
