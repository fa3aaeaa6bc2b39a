"""``nvfp4 exec``: a program on a device of this machine, in the simulator and on a remote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.cli import mounts
from tests.cli.helpers import ROOT, Result, git, run_process
from tests.device.remote.programs import SLEEPS, read_pids
from tests.device.remote.ssh.conftest import Sshd, sshd
from tests.waiting import LONGEST_S, alive, far_enough, until

__all__ = ["sshd"]

LAUNCHES = """
import sys
import cutlass, torch
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.struct
class Storage:  # its annotations are types, not text
    barriers: cute.struct.MemRange[cutlass.Int64, 4]


@cute.kernel
def kernel(c: cute.Pointer):
    thread, _, _ = cute.arch.thread_idx()
    mC = cute.make_tensor(c, cute.make_layout(32))
    mC[thread] = cutlass.Float32(thread) * 2


@cute.jit
def host(c: cute.Pointer):
    kernel(c).launch(grid=(1, 1, 1), block=(32, 1, 1))


c = torch.zeros(32, device="cuda")
pointer = make_ptr(cutlass.Float32, c.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
cute.compile(host, pointer)(pointer)
torch.cuda.synchronize()
print(torch.cuda.get_device_name(0), int(c.sum()))
sys.exit(int(sys.argv[1]))
"""

OUTSIDE = """
import sys
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def copied(source, target, row):
    tile = source.load([row, 0])
    target.store([0, 0], tile)


x = torch.ones(64, 32, device="cuda")
y = torch.zeros_like(x)
copied[(1,)](*[TensorDescriptor.from_tensor(each, [64, 32]) for each in (x, y)], int(sys.argv[1]))
assert not sys.argv[2] or y.sum() == 64 * 32
"""
ENDLESS = """
import multiprocessing, torch, triton
import triton.language as tl

@triton.jit
def spin(flag):
    n = 0
    while n < 5:
        tl.atomic_add(flag, 1)
        n = n * 2

def launch():
    spin[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=launch).start()
    launch()
"""

UNWRITTEN = """
import torch, triton
import triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n), i < n)

def new(*shape):
    return torch.empty(*shape, device="cuda")

def copied(x, n=300):
    y = torch.empty_like(x)
    copy[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
    return y

ones = torch.ones(300, device="cuda")
columns, rows, placed = new(3, 100), new(10, 30), new(300)
columns[:, ::2], columns[:, 1::2] = 1, 2
placed[torch.arange(300, device="cuda")] = 1.0
written = [
    *(ones, torch.ones(300).cuda(), torch.randn(300, device="cuda"), copied(copied(ones)), columns, placed),
    *(new(300).fill_(1), new(300).copy_(torch.ones(300)), torch.add(ones, 1, out=new(300)), rows.t().normal_()),
    *(ones.clone(), torch.cat([ones, ones])),
]
for x in written:
    copied(x)
copied(copied(ones, 200), 200)
LAST
"""


def run(*arguments: object, cwd: Path | None = None, stdin: bytes = b"", **environ: str) -> Result:
    """Run ``nvfp4 exec`` with a standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.cli", "exec", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        input=stdin,
        capture_output=True,
        timeout=5 * LONGEST_S,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.slow
def test_a_kernel_is_launched_in_the_simulator(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LAUNCHES)
    done = run("--device", "sim", program, "3", MODAL_TOKEN_SECRET="as-planted")
    assert (done.code, done.out) == (3, "NVIDIA B200 992\n"), done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "races", "status", "found"),
    [
        (["--races"], True, 1, ["simulated, race: ", "program.py:", "look at: "]),
        (["--races", "--schedule", "7"], False, 0, []),
        (["--schedule", "lazy"], True, 0, []),
    ],
)
def test_races_of_a_program(tmp_path: Path, options: list[str], races: bool, status: int, found: list[str]) -> None:
    """Two warps write the same elements, or each its own."""
    program = tmp_path / "program.py"
    text = LAUNCHES.replace("block=(32", "block=(64").replace("torch.zeros(32", "torch.zeros(64")
    program.write_text(text.replace("mC[thread]", "mC[thread % 32]" if races else "mC[thread]").replace("(32)", "(64)"))
    done = run("--device", "sim", *options, program, "0")
    assert done.code == status, done.err
    assert all(word in done.err for word in found)
    assert ("race" in done.err) is bool(found)


@pytest.mark.slow
def test_what_may_have_caused_a_fault_is_written_before_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = LAUNCHES.replace("block=(32", "block=(64").replace("mC[thread]", "mC[thread % 32]")
    end = "cutlass.Float32(thread) * 2\n"
    program.write_text(text.replace(end, f"{end}    mC[thread % 32] = mC[thread + thread // 32 * 100000]\n"))
    done = run("--device", "sim", "--races", program, "0")
    assert done.code == 1, done.err
    assert done.err.count("simulated, out-of-bounds: ") == 2, "as a finding, and as the program's exception"
    assert -1 < done.err.find("simulated, race: ") < done.err.find("simulated, out-of-bounds: ")


@pytest.mark.slow
def test_a_race_in_a_launch_after_one_between_streams(tmp_path: Path) -> None:
    """The first launch has none of its own; when it has ended, the one between streams is reported."""
    calls = """
compiled = cute.compile(host, pointer, cutlass.Int32(32))
with torch.cuda.stream(torch.cuda.Stream()):
    c.add_(1)
for threads in map(int, sys.argv[2:]):
    compiled(pointer, cutlass.Int32(threads))
"""
    text = LAUNCHES.replace("def host(c: cute.Pointer)", "def host(c: cute.Pointer, threads: cutlass.Int32)")
    text = text.replace("block=(32, 1, 1)", "block=(threads, 1, 1)").replace("mC[thread]", "mC[thread % 32]")
    program = tmp_path / "program.py"
    program.write_text(text.replace("cute.compile(host, pointer)(pointer)\n", calls))
    for threads, own in ((32, False), (64, True)):
        done = run("--device", "sim", "--races", program, "0", 32, threads)
        assert done.code == 1, done.err
        assert "nothing makes stream 1" in done.err
        assert ("of CTA (0, 0, 0) writes" in done.err) is own, done.err


@pytest.mark.slow
@pytest.mark.parametrize("way", ["environment", "variable", "option", "missing"])
def test_a_program_names_the_folder_of_the_compiled_files(tmp_path: Path, way: str) -> None:
    """The simulator needs the files, too."""
    first = f"import os\nos.environ['CUTE_DSL_DUMP_DIR'] = {'gone' if way == 'missing' else '.'!r}\n"
    option = "host, pointer, options='--keep-ptx --dump-dir .'"
    text = LAUNCHES.replace("sys.exit", "import glob\nprint(len(glob.glob('*.ptx')))\nsys.exit")
    text = text.replace("host, pointer", option) if way == "option" else text
    program = tmp_path / "program.py"
    program.write_text((first if way in ("variable", "missing") else "") + text)
    given = ["--env", "CUTE_DSL_DUMP_DIR=."] if way == "environment" else []
    done = run("--device", "sim", *given, program, "0")
    assert (done.code, done.out.split()) == (0, ["NVIDIA", "B200", "992", str(int(way != "missing"))]), done.err


@pytest.mark.parametrize(
    ("last", "options", "unwritten"),
    [
        ("", ["--races"], []),
        ("copied(new(300))", ["--races"], ["at byte 0"]),
        (
            "copied(copied(ones, 200), 300)",
            ["--races"],
            ["(y, made at program.py:", "at byte 800"],
        ),
        (
            "columns = new(300); columns[:299] = 0; copied(columns)",
            ["--races"],
            ["(made at program.py:11, called", "at byte 1196"],
        ),
        ("copied(new(300))", [], []),
    ],
)
def test_uses_of_what_nothing_has_written(tmp_path: Path, last: str, options: list[str], unwritten: list[str]) -> None:
    """They are warnings: a program has no reference that tells whether a result depends on them."""
    pytest.importorskip("triton")
    program = tmp_path / "program.py"
    program.write_text(UNWRITTEN.replace("LAST", last))
    done = run("--device", "sim", *options, program)
    assert done.code == 0, done.err
    assert done.err.count("simulated, ") == bool(unwritten), done.err
    assert all(word in done.err for word in unwritten), done.err
    assert ("program.py:8: simulated, unwritten: ld.global" in done.err) is bool(unwritten)


@pytest.mark.parametrize(
    ("row", "checked", "code"), [(0, "checked", 0), (64, "", 0), (64, "checked", 1)], ids=["right", "passes", "fails"]
)
def test_a_box_outside_its_tensor_is_told_of_a_program_that_fails(
    tmp_path: Path, row: int, checked: str, code: int
) -> None:
    """The last tiles of a right program may have such boxes, too."""
    pytest.importorskip("triton")
    program = tmp_path / "program.py"
    program.write_text(OUTSIDE)
    done = run("--device", "sim", program, row, checked)
    assert done.code == code, done.err
    _, failed, after = done.err.partition("AssertionError")
    assert bool(failed) is bool(code)
    assert done.err.count("simulated, ") == after.count("simulated, ") == code, done.err
    if code:
        assert "program.py:10: simulated, outside-box: cp.async.bulk.tensor.2d" in after
        assert "the box at coordinates (0, 64) lies wholly outside its tensor (device allocation" in after
        assert "x, made at program.py:14" in after
        assert "32 x 64 in the tensor map" in after


@pytest.mark.slow
def test_where_a_launch_is_at_the_timeout(tmp_path: Path) -> None:
    """Also that of a process which the program has started."""
    pytest.importorskip("triton")
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)

    def stopped(deadline_s: float) -> Result:
        return run("--device", "sim", "--timeout", deadline_s, "--mount-dir", f"{tmp_path}:.", program)

    done = far_enough(stopped, lambda done: done.err.count("had not ended") == 2, first_s=20)
    assert done.code == 124
    assert done.err.count("endless.py:9: simulated, timeout: spin had not ended when its time was over: 1 CTA") == 2


@pytest.mark.slow
def test_code_as_an_argument_and_on_standard_input() -> None:
    show = "import os, sys; print(sys.argv[1:], 'as-planted' in str(os.environ), os.environ.get('MINE'))"
    done = run("--device", "sim", "--env", "MINE=1", "-", "a", "--b", stdin=show.encode(), SECRET="as-planted")
    assert (done.code, done.out) == (0, "['a', '--b'] False 1\n"), done.err
    done = run("--device", "sim", "--stdin", "import sys; print(sys.stdin.read()); raise ValueError('no')", stdin=b"in")
    assert (done.code, done.out) == (1, "in\n")
    assert done.err.rstrip().endswith("ValueError: no")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import beside", "beside"),
        ("import pathlib; print(pathlib.Path(__file__).with_name('beside.cu').read_text())", "beside.cu"),
    ],
)
def test_what_lies_beside_the_program(tmp_path: Path, code: str, name: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "beside.py").touch()
    (tmp_path / "below" / "beside.cu").touch()
    program = tmp_path / "below" / "program.py"
    program.write_text(code)
    done = run("--device", "sim", program)
    assert done.code == 1
    assert f"{name} lies in {tmp_path}/below, and not in the program's working folder: give --mount-dir" in done.err
    done = run("--device", "sim", "--mount-dir", f"{tmp_path}:.", program)
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_as_json() -> None:
    done = run("--device", "sim", "--json", "import sys; print(1); sys.exit('two')")
    said = json.loads(done.out)
    assert (done.code, said["status"], said["stdout"], said["stderr"]) == (1, 1, "1\n", "two\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothere.py"], "nothere.py: no such file"),
        (["--device", "modl", "1"], "did you mean 'modal'"),
        (["--device", "popcorn", "1"], "runs kernels, but no programs"),
        (["--device", "ssh:", "1"], "names no host"),
        (["--env", "X", "1"], "write it as NAME=VALUE"),
        (["--mount-dir", "x", "1"], "LOCAL:REMOTE"),
        (["--mount-dir", ".:../x", "1"], "must lie below"),
        (["--mount-dir", ".:/x", "1"], "must lie below"),
        (["--stdin", "-"], "both read standard input"),
        (["--races", "--device", "ssh:b200", "1"], "--races is for the simulator"),
        (["--schedule", "soon", "1"], "must be eager, lazy, late-WARP or a seed"),
        (["--racess", "1"], "No such option '--racess'. (Did you mean"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = run_process("exec", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_what_is_mounted(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    (root / "pkg").mkdir(parents=True)
    git("init", "-q", cwd=root)
    (root / ".gitignore").write_text("ignored\n")
    for name in ("pkg/mod.py", "new.txt", "ignored", ".env", "pkg/id_ed25519", "server.key"):
        (root / name).write_text(name)
    git("add", "pkg/mod.py", cwd=root)
    assert mounts.repository(root / "pkg") == root
    files = mounts.repository_files(root)
    assert set(files) == {"pkg/mod.py", "new.txt", ".gitignore"}
    assert "not mounted, because they look like secrets: .env, pkg/id_ed25519, server.key" in capsys.readouterr().err
    folder = tmp_path / "data"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "deep").mkdir()
    (folder / "deep" / "x.bin").write_bytes(b"\0\1")
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    assert mounts.mount(f"{folder}:in/here") == {"in/here/deep/x.bin": b"\0\1"}
    assert mounts.mount(f"{folder}:.") == {"deep/x.bin": b"\0\1"}
    monkeypatch.setattr(mounts, "MAX_BYTES", 1)
    with pytest.raises(Exception, match=r"the largest are deep/x.bin \(2 B\)"):
        mounts.check_size({"deep/x.bin": b"\0\1"})


def test_on_a_remote(sshd: Sshd, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    git("init", "-q", cwd=root)
    (root / "helper.py").write_text("WORD = 'mounted'\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("data")
    code = (
        "import helper, sys; print(helper.WORD, open('d/x').read(), sys.argv[1:]); print('e', file=sys.stderr); exit(9)"
    )
    done = run("--device", f"ssh:{sshd.target()}", "--mount", "--mount-dir", f"{data}:d", code, "--x", cwd=root)
    assert (done.code, done.out) == (9, "mounted data ['--x']\n"), done.err
    assert "e\n" in done.err
    done = run("--device", f"ssh:{sshd.target('closed')}", "1")
    assert done.code == 2
    assert "see that sshd runs there" in done.err


def test_ctrl_c_ends_it_there_too(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    ours = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest_nvfp4.cli",
            "exec",
            "--device",
            f"ssh:{sshd.target()}",
            SLEEPS.format(file=str(file)),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        pids = read_pids(file)
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"up\n", "output comes while it runs"
        ours.send_signal(signal.SIGINT)
        assert ours.wait(timeout=LONGEST_S) == 130
    finally:
        ours.kill()
        ours.communicate()
    assert until(lambda: not any(map(alive, pids)))
    assert until(lambda: not list(sshd.far.iterdir()))
