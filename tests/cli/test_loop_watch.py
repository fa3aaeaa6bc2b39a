"""``nvfp4 loop watch``: the terminal view in small and large terminals, its keys, and plain lines."""

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.loop import watch
from pytest_nvfp4.cli.loop.follow import follow
from pytest_nvfp4.cli.loop.screen import LoopApp
from pytest_nvfp4.loop.state import Control, StateFolder, read_model
from pytest_nvfp4.loop.view.view import LoopReader
from tests.cli.helpers import Result
from tests.cli.loop_screen import LARGE, SMALL, drive, press, settle, shown
from tests.loop.samples import FixedClock, Sample, night, promotion


def running(root: Path) -> Sample:
    """Return a loop that judges candidates 7 and 8."""
    sample = night(root)
    sample.state("JUDGE", [promotion(1, 90.0), promotion(4, 81.0)], iteration=7)
    sample.gates(7, "compile", "layouts")
    sample.candidate(8)
    sample.output(7, b"first\nsecond \x1b[2J\x1b[31mred\x1b[0m\ngone\rnew \xff \xe2\x80\xae[bold]x[/bold]\n")
    sample.runs(7, 8, activity="judges candidates 7 and 8")
    return sample


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_matters_is_visible(tmp_path: Path, size: tuple[int, int]) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        text = " ".join(shown(app).split())
        for expected in (
            "night JUDGE iteration 7 of 40",
            "running: JUDGE of iteration 7, judges candidates 7 and 8",
            "100 -> 81 (-19.0 %), candidate 4; measured ratio",
            "0.828 (0.810 to 0.846) on NVIDIA H200, product of 2 comparisons",
            "time 10.0 of 360 min | GPU 12 s | cost 1.25 of 20 USD | tokens 5,000",
            "without promotion 0 of 6 | infrastructure failures 0 of 3",
            "candidate 7: +compile 2s +layouts 2s",
            "candidate 8: waits for the judge",
            "worker_attempt_1.stdout.log",
            "stop now",
            "quit",
        ):
            assert expected in text

    drive(sample.folder, script, size=size)


def test_output_of_a_worker_neither_acts_nor_is_markup(tmp_path: Path) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        text = shown(app)
        assert "second \\x1b[2Jred" in text
        assert "new \ufffd \\u202e[bold]x[/bold]" in text
        assert "gone" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text

    drive(sample.folder, script)


def test_long_lines_of_output_leave_the_last_one_visible(tmp_path: Path) -> None:
    sample = running(tmp_path)
    sample.output(7, b"".join(b"%d " % at + b"x" * 500 + b"\n" for at in range(50)) + b"the end\n")

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        assert "the end" in shown(app)

    drive(sample.folder, script)


def test_the_gates_of_the_start_are_shown(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("INIT", iteration=0)
    sample.runs(activity="the kernel at the start is examined")

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        assert "the kernel at the start: is not examined yet" in shown(app)
        sample.red_start("C is \x1b[2J wrong")
        app._read()
        await settle(app, pilot)
        assert "the kernel at the start: +compile 0s xverify 0s" in shown(app)
        assert "C is \\x1b[2J wrong" in shown(app)

    (sample.folder.baseline / "examination.json").unlink()
    drive(sample.folder, script)


def test_the_output_of_a_reviewer_is_shown_while_it_runs(tmp_path: Path) -> None:
    sample = running(tmp_path)
    sample.state("RUN_REVIEWER", iteration=7)
    folder = sample.folder.iteration(7)
    folder.mkdir(parents=True)
    (folder / "reviewer_attempt_1.stdout.log").write_text("thinks\n")

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        text = shown(app)
        assert "reviewer of iteration 7, reviewer_attempt_1.stdout.log\n thinks" in text
        assert "worker_attempt" not in text

    drive(sample.folder, script)


@pytest.mark.slow
def test_a_small_terminal_shows_one_pane_and_a_large_one_all(tmp_path: Path) -> None:
    sample = running(tmp_path)
    parts = {"1": "+compile 2s", "2": "81.0 % |", "3": "modelled us  measured", "4": "k.py:9: tile", "5": "is promoted"}

    async def small(app: LoopApp, pilot: Pilot[int]) -> None:
        for key in parts:
            text = await press(app, pilot, key)
            assert [name for name, expected in parts.items() if expected in text] == [key]

    async def large(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        assert [expected for expected in parts.values() if expected not in shown(app)] == []

    drive(sample.folder, small)
    drive(sample.folder, large, size=LARGE)


def test_a_resize_draws_again(tmp_path: Path) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        for width, height in (LARGE, (40, 10), (10, 3), SMALL):
            await pilot.resize_terminal(width, height)
            await settle(app, pilot)
            assert max(map(len, shown(app).splitlines())) <= width
        assert "candidate 7: +compile" in shown(app)

    drive(sample.folder, script)


def test_a_stop_after_the_iteration_is_a_request(tmp_path: Path) -> None:
    sample = running(tmp_path)
    before = {path for path in sample.folder.root.rglob("*") if path.is_file()}

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "s")
        assert "stop after this iteration is requested" in " ".join(shown(app).split())

    drive(sample.folder, script)
    assert read_model(sample.folder.control, Control) == Control(
        stop="after-iteration", reason="a key in nvfp4 loop watch"
    )
    assert {path for path in sample.folder.root.rglob("*") if path.is_file()} - before == {sample.folder.control}


def test_a_stop_now_asks_first(tmp_path: Path) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        assert "Stop now?" in await press(app, pilot, "x")
        await press(app, pilot, "n")
        assert not sample.folder.control.exists()
        await press(app, pilot, "x", "y")

    drive(sample.folder, script)
    control = read_model(sample.folder.control, Control)
    assert control is not None
    assert control.stop == "now"


@pytest.mark.parametrize("key", ["s", "x"])
def test_a_loop_that_does_not_run_cannot_be_stopped(tmp_path: Path, key: str) -> None:
    sample = night(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, key)
        assert [each.message for each in app._notifications] == ["no process runs this loop: there is nothing to stop"]

    drive(sample.folder, script)
    assert not sample.folder.control.exists()


def test_the_diff_of_the_selected_candidate_and_of_the_incumbent(tmp_path: Path) -> None:
    sample = night(tmp_path)
    sample.candidate(7, diff=f"+evil \x1b[2J [bold] {'x' * 100} the end\n")

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "d")
        assert "+evil \\x1b[2J [bold]" in text
        assert "the end" in text
        await press(app, pilot, "escape", "3", "up", "up", "up")
        text = await press(app, pilot, "d")
        assert "candidate 4" in text
        assert "ratio 0.9200 (0.9100 to 0.9300), faster" in text
        assert "+STAGES = 4" in text
        text = await press(app, pilot, "escape", "i")
        assert "step 1: candidate 1" in text
        assert "step 2: candidate 4" in text
        assert "which nobody has verified" in text

    drive(sample.folder, script)


def test_a_directory_that_comes_into_being_is_shown(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "later")

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        assert "no loop has begun here" in shown(app)
        await press(app, pilot, "d", "i", "s")
        running(folder.root)
        app._read()
        await settle(app, pilot)
        assert "candidate 7: +compile" in shown(app)
        assert "stopped" not in shown(app)

    drive(folder, script)


def test_candidates_that_change_are_changed_and_new_ones_appended(tmp_path: Path) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        assert "proposed" in await press(app, pilot, "3")
        sample.candidate(8, outcome="slower", us=120.0, reason="more bytes")
        sample.candidate(9)
        app._read()
        await settle(app, pilot)
        text = shown(app)
        assert "more bytes" in text
        assert text.count("proposed") == 1

    drive(sample.folder, script)


def test_a_dead_loop_is_said_to_be_dead(tmp_path: Path) -> None:
    sample = night(tmp_path)
    sample.state("JUDGE", iteration=7)
    sample.died()

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del pilot
        text = "".join(shown(app).split())
        assert "endedinJUDGEofiteration7withoutstoppingit" in text
        assert f"nvfp4looprun{tmp_path}/loop.toml--state{tmp_path}" in text

    drive(sample.folder, script)


@pytest.mark.parametrize(("key", "code"), [("q", Exit.FINE), ("ctrl+c", Exit.INTERRUPTED)])
def test_the_view_ends_and_the_loop_goes_on(tmp_path: Path, key: str, code: Exit) -> None:
    sample = running(tmp_path)

    async def script(app: LoopApp, pilot: Pilot[int]) -> None:
        del app
        await pilot.press(key)

    assert drive(sample.folder, script) == code
    assert not sample.folder.control.exists()


# Plain lines


def test_lines_are_written_until_the_loop_stops(tmp_path: Path, cli: Callable[..., Result]) -> None:
    sample = running(tmp_path)
    lines: list[str] = []

    def stops(seconds: float) -> None:
        assert seconds == 0.5
        sample.candidate(8, outcome="slower", us=120.0, reason="more\x1b[2J bytes")
        sample.state("STOPPED", [promotion(1, 90.0), promotion(4, 81.0)], iteration=7, stop_reason="asked")
        sample.folder.lock.unlink()

    assert follow(LoopReader(sample.folder, FixedClock()), lines.append, refresh_s=0.5, sleep=stops) is Exit.FINE
    assert lines[0] == "loop night: running: JUDGE of iteration 7"
    assert lines[-2:] == ["candidate 8: slower: more\\x1b[2J bytes", "stopped: asked"]
    done = cli("loop", "watch", "--state", tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (0, "loop night: stopped: asked")


def test_lines_end_with_1_when_the_loop_stays_dead(tmp_path: Path) -> None:
    sample = running(tmp_path)
    lines: list[str] = []
    naps: list[float] = []

    def dies(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            sample.runs(7)  # begun again
        elif len(naps) in (1, 3):
            sample.died()

    assert follow(LoopReader(sample.folder, FixedClock()), lines.append, refresh_s=4.0, sleep=dies) is Exit.FAILED
    assert len(naps) == 5
    assert "without stopping it; go on with `nvfp4 loop run" in lines[-1]


def test_json_is_the_present_state(tmp_path: Path, cli: Callable[..., Result]) -> None:
    data = json.loads(cli("loop", "watch", "--state", running(tmp_path).folder.root, "--json").out)
    assert (data["life"], data["activity"]) == ("running", "judges candidates 7 and 8")
    none = cli("loop", "watch", "--state", tmp_path / "none", "--json")
    assert (none.code, json.loads(none.out)["life"]) == (0, "absent")


def test_without_textual_the_way_out_is_named(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_is_terminal", lambda: True)
    monkeypatch.setattr(watch, "find_spec", lambda _: None)
    done = cli("loop", "watch", "--state", tmp_path)
    assert done.code == 2
    assert "pip install 'pytest-nvfp4[watch]'" in done.err


def test_plain_lines_need_no_textual(tmp_path: Path, cli: Callable[..., Result], monkeypatch) -> None:
    night(tmp_path)
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.partition(".")[0] == "textual":
            raise ModuleNotFoundError(name=name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "pytest_nvfp4.cli.loop.follow", raising=False)
    assert cli("loop", "watch", "--state", tmp_path, "--plain").code == 0
