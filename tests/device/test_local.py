"""The worker with torch's stand-in device: everything but the GPU itself."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.local import LocalDevice
from tests.waiting import far_enough

from .local_jobs import CASES, KERNELS, verify, write

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> LocalDevice:
    return LocalDevice(probe_folder=tmp_path_factory.mktemp("probe"), backend="host")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8])
def test_an_honest_kernel_passes(device: LocalDevice, tmp_path: Path, seed: int) -> None:
    result, verdicts = verify(device, tmp_path, KERNELS / "honest.py", seed=seed)
    assert result.status == "passed", result.findings
    assert [verdict.status for verdict in verdicts] == ["passed"] * len(CASES), verdicts
    assert all(verdict.groups for verdict in verdicts)


RED = {
    "cached_by_shape": {"failed"},
    "cached_by_pointer": {"failed"},
    "cached_by_sample": {"failed"},
    "one_behind": {"failed"},
    "deferred_thread": {"failed", "cheated"},
    "lazy_tensor": {"error", "cheated"},
    "patched_clock": {"cheated"},
    "patched_event": {"cheated"},
    "patched_compare": {"cheated"},
    "patched_sync": {"cheated"},
    "leaves_early": {"crashed"},
    "reads_harness": {"cheated"},
    "forges_events": {"cheated"},
    "writes_inputs": {"failed"},
    "stale_output": {"failed"},
}
"""Status of at least one case for each cheat of the corpus; work on another stream is right: its times show it."""
KEEP_ANSWERS = {"cached_by_shape", "cached_by_pointer", "cached_by_sample", "one_behind", "stale_output"}
"""Cheats that the second call of any problem shows."""


def test_the_corpus_is_complete() -> None:
    assert {path.stem.removeprefix("cheat_") for path in KERNELS.glob("cheat_*.py")} == {
        *RED,
        "other_stream",
        "trailing_stream",
    }


@pytest.mark.slow
@pytest.mark.parametrize("cheat", RED)
def test_cheats_go_red(device: LocalDevice, tmp_path: Path, cheat: str) -> None:
    _, verdicts = verify(device, tmp_path, KERNELS / f"cheat_{cheat}.py")
    assert {verdict.status for verdict in verdicts} & RED[cheat], verdicts
    red = {verdict.case.problem.name for verdict in verdicts if verdict.status in RED[cheat]}
    assert cheat not in KEEP_ANSWERS or red == {case.problem.name for case in CASES}
    assert all(verdict.findings for verdict in verdicts if verdict.status != "passed")
    if cheat in ("cached_by_shape", "one_behind"):  # the words of a result that an earlier call computed
        text = "\n".join(str(finding) for verdict in verdicts for finding in verdict.findings)
        assert "an earlier call" in text, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("def custom_kernel(data):\n    1 / 0\n", "error", "kernel.py:2: kernel.py failed: ZeroDivision"),
        (
            "import functools\n@functools.cache\ndef custom_kernel(data, stream): ...\n",
            "error",
            "kernel.py:3: custom_kernel(data, stream) cannot be called as the contract calls it, custom_kernel(data): "
            "missing a required argument: 'stream'",
        ),
        ("import nothing_like_it\n", "error", "kernel.py:1"),
        ("x = 1\n", "error", "defines no custom_kernel"),
        ("def custom_kernel(data):\n    import ctypes; ctypes.string_at(0)\n", "crashed", "SIGSEGV"),
        ("def custom_kernel(data):\n    import os; os.kill(os.getpid(), 9)\n", "crashed", "SIGKILL"),
        ("def custom_kernel(data):\n    return None\n", "failed", "returned NoneType"),
        ("def custom_kernel(data):\n    return []\n", "failed", "returned 0 outputs"),
        ("def custom_kernel(data):\n    return [c.double() for _, _, c in data[0]]\n", "failed", "not torch.float16"),
        ("def custom_kernel(data):\n    return [c[:1] for _, _, c in data[0]]\n", "failed", "has shape"),
        ("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n", "failed", "it still holds the poison"),
        (
            "def custom_kernel(data):\n    return [c.zero_() for _, _, c in data[0]]\n",
            "failed",
            "every wrong output is zero: nothing was accumulated",
        ),
    ],
)
def test_kernels_that_fail(device: LocalDevice, tmp_path: Path, text: str, status: str, words: str) -> None:
    _, verdicts = verify(device, tmp_path, write(tmp_path, text))
    assert {verdict.status for verdict in verdicts} == {status}, verdicts
    assert words in str(verdicts[0].findings[0])
    if "kernel.py:" in words:
        assert verdicts[0].findings[0].file == str(tmp_path / "kernel.py")


@pytest.mark.slow
def test_a_hang_is_stopped(device: LocalDevice, tmp_path: Path) -> None:
    path = write(tmp_path, "def custom_kernel(data):\n    import time; time.sleep(10_000)\n")
    seeds = count()
    result, verdicts = far_enough(
        lambda deadline_s: verify(device, tmp_path, path, seed=next(seeds), deadline_s=deadline_s),
        lambda done: "call 0" in str(done[1][0].findings) and done[1][0].findings[0].line,
        first_s=8,
    )
    assert result.status == "timeout"
    assert {verdict.status for verdict in verdicts} == {"timeout"}
    assert "call 0" in str(verdicts[0].findings[0])
    assert (verdicts[0].findings[0].file, verdicts[0].findings[0].line) == (str(path), 2)


@pytest.mark.slow
def test_an_output_in_a_tensor_of_its_own_counts(device: LocalDevice, tmp_path: Path) -> None:
    text = (
        (KERNELS / "honest.py")
        .read_text()
        .replace("    return [c for _, _, c in abc]", "    return [c.clone().contiguous() for _, _, c in abc]")
    )
    _, verdicts = verify(device, tmp_path, write(tmp_path, text))
    assert {verdict.status for verdict in verdicts} == {"passed"}, verdicts


@pytest.mark.slow
def test_a_store_beyond_the_rows_is_seen(device: LocalDevice, tmp_path: Path) -> None:
    text = (
        (KERNELS / "honest.py")
        .read_text()
        .replace(
            "    return [c for _, _, c in abc]",
            "    for _, _, c in abc:\n"
            "        m, n, _ = c.shape\n"
            "        torch.as_strided(c, (1,), (1,), c.storage_offset() + m * n).fill_(1.0)\n"
            "    return [c for _, _, c in abc]",
        )
    )
    _, verdicts = verify(device, tmp_path, write(tmp_path, text))
    assert {verdict.status for verdict in verdicts} == {"failed"}
    assert "guard" in str(verdicts[0].findings[0])


@pytest.mark.slow
def test_another_architecture_is_unsupported(device: LocalDevice, tmp_path: Path) -> None:
    assert device.unsupported("sm_100a") is None
    assert "sm_90a" in (device.unsupported("sm_90a") or "")
    result, _ = verify(device, tmp_path, KERNELS / "honest.py", arch="sm_90a")
    assert result.status == "unsupported"
    assert "sm_90a" in result.reason


@pytest.mark.slow
def test_a_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="no CUDA device"):
        LocalDevice(probe_folder=tmp_path, visible="").describe()


@pytest.mark.slow
def test_the_stand_in_sees_no_gpu_that_is_there(
    device: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    text = "import os\nassert not os.environ['CUDA_VISIBLE_DEVICES']\n" + (KERNELS / "honest.py").read_text()
    result, _ = verify(device, tmp_path, write(tmp_path, text))
    assert result.status == "passed", result.findings


@pytest.mark.slow
def test_the_worker_sees_no_secrets(device: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "planted")
    text = "import os\nassert 'planted' not in os.environ.values()\n" + (KERNELS / "honest.py").read_text()
    result, _ = verify(device, tmp_path, write(tmp_path, text))
    assert result.status == "passed", result.findings
