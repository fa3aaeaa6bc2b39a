"""Ways to a forged answer that need no kernel: each is seen, and what honest kernels do beside their work is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cheats import BESIDE, CHEATS, HONEST, verdict

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS)
def test_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheat: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text, word = CHEATS[cheat]
    status, said = verdict(tmp_path, HONEST + text)
    assert (status, word in said) == ("cheated", True), said


@pytest.mark.slow
def test_many_at_once_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = (
        "searches the heap",
        "borrows the oracle",
        "looks for the pipe",
        "encodes what is sent",
        "says when it ends",
    )
    status, said = verdict(tmp_path, HONEST + "".join(CHEATS[name][0] for name in chosen))
    assert status == "cheated"
    assert all(CHEATS[name][1] in said for name in chosen), said


@pytest.mark.slow
def test_what_honest_kernels_do_beside_their_work_is_not(tmp_path: Path) -> None:
    status, said = verdict(tmp_path, HONEST.replace("def custom_kernel(data: input_t)", "def work(data)") + BESIDE)
    assert status == "passed", said
