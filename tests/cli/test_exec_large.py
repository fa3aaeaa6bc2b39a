"""``nvfp4 exec --device sim``: random tensors larger than memory, which programs draw to evict the L2 cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_exec import run

PROGRAM = """
import cutlass, torch
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = x[thread]


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    kernel(x, y).launch(grid=(1, 1, 1), block=(32, 1, 1))


few = torch.zeros(32, device="cuda")
for _ in range(2):
    large = torch.randn((16000, 1024, 1024), device="cuda")
    end = large.view(-1)[-32:]
    host(from_dlpack(end), from_dlpack(few))
    assert torch.equal(few, end)
    assert few.count_nonzero() == 32
    assert abs(float(large[777].std()) - 1) < 0.01
    for write in (lambda: end.mul_(2), lambda: torch.add(few, 1, out=end), end.normal_):
        try:
            write()
        except MemoryError as error:
            assert "a random tensor of 67108864000 bytes" in str(error)
        else:
            raise SystemExit("it was written")
    del large, end

integers = torch.randint(3, 9, (17 << 30,), dtype=torch.uint8, device="cuda")
assert set(integers[-1000:].tolist()) == set(range(3, 9))
del integers
torch.manual_seed(7)
drawn = torch.rand((17 << 30,), dtype=torch.float32, device="cuda")[-4:].clone()
torch.manual_seed(7)
assert torch.equal(drawn, torch.rand((17 << 30,), dtype=torch.float32, device="cuda")[-4:])
like = torch.empty(1, device="cuda").expand(17, 1 << 30)
for draw, least in ((torch.randn_like, -9), (torch.rand_like, 0), (lambda one: torch.randint_like(one, 2, 5), 2)):
    large = draw(like)
    assert large.shape == like.shape
    assert large.is_contiguous()
    assert large.device == like.device
    assert least <= float(large[16, -1000:].min()) < float(large[16, -1000:].max()) < 9
    del large
print("read")
large = torch.randn((16000, 1024, 1024), device="cuda")
host(from_dlpack(few), from_dlpack(large.view(-1)[-32:]))
torch.cuda.synchronize()
"""


@pytest.mark.slow
def test_a_large_random_tensor_is_read_and_not_written(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run("--device", "sim", program)
    assert (done.code, done.out) == (1, "read\n"), done.err
    line = PROGRAM.splitlines().index("    y[thread] = x[thread]") + 1
    assert f"program.py:{line}: simulated, read-only: st.global.b32" in done.err
    assert "random numbers that repeat at byte 67108863872, which is read-only" in done.err
