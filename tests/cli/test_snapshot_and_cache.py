"""``nvfp4 snapshot`` and ``nvfp4 cache``."""

import json
import os
import threading

import pytest
from filelock import FileLock

from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.toolchain.cache_contents import clear_traces, folder_bytes, survey
from tests.waiting import LONGEST_S

PAIRS = {"k.sA": '!cute.memref<f16, smem, align<128>, "(8,4):(4,1)">', "k.copy": "!cute.ptr<f16, gmem, align<16>>"}


@pytest.fixture
def snapshot(tmp_path):
    """A whole snapshot of two layouts."""
    path = tmp_path / "snap.txt"
    path.write_text(Listing.from_pairs({"kernel": "k.py", "dsl": "4.8.1"}, PAIRS.items()).render())
    return path


def test_a_snapshot_is_shown(snapshot, cli) -> None:
    shown = cli("snapshot", "show", snapshot)
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "kernel  k.py",
        "dsl     4.8.1",
        "",
        "k.copy  !cute.ptr<f16, gmem, align<16>>  gmem  align 16",
        "k.sA  (8,4):(4,1)  smem  align 128",
    ]
    data = json.loads(cli("snapshot", "show", snapshot, "--json").out)
    assert data["header"] == {"kernel": "k.py", "dsl": "4.8.1"}
    assert {row["name"]: row["raw"] for row in data["layouts"]} == PAIRS


def test_whole_snapshots_pass_and_each_damaged_one_is_named(snapshot, cli, tmp_path) -> None:
    assert cli("snapshot", "check", snapshot).out == f"{snapshot}  2 layouts, complete\n"
    cut = tmp_path / "cut.txt"
    cut.write_text(snapshot.read_text().rpartition("# end")[0])
    edited = tmp_path / "edited.txt"
    edited.write_text(snapshot.read_text().replace("(8,4):(4,1)  !", "(8,4):(8,1)  !"))
    shown = cli("snapshot", "check", cut, snapshot, edited)
    assert shown.code == 2
    assert shown.out == f"{snapshot}  2 layouts, complete\n"
    lines = shown.err.splitlines()
    assert len(lines) == 2
    assert "cut.txt" in lines[0]
    assert "edited.txt: layout snapshot, line 6" in lines[1]
    data = json.loads(cli("snapshot", "check", cut, snapshot, "--json").out)
    assert [one["count"] for one in data["snapshots"]] == [2]
    assert len(data["errors"]) == 1


def test_the_snapshots_of_a_folder_are_checked(snapshot, cli, tmp_path) -> None:
    whole = tmp_path / "s" / "kernels" / "layouts.txt"
    whole.parent.mkdir(parents=True)
    snapshot.rename(whole)
    (whole.parent / "notes.txt").write_text("the user's")
    (tmp_path / "s" / ".hidden").mkdir()
    (tmp_path / "s" / ".hidden" / "layouts.txt").write_text(whole.read_text())
    assert cli("snapshot", "check", tmp_path / "s").out == f"{whole}  2 layouts, complete\n"
    merged = tmp_path / "s" / "merged.txt"
    merged.write_text(f"<<<<<<< ours\n{whole.read_text()}=======\n{whole.read_text()}>>>>>>> theirs\n")
    shown = cli("snapshot", "check", tmp_path)
    assert (shown.code, shown.out) == (2, f"{whole}  2 layouts, complete\n")
    assert "merged.txt" in shown.err
    (tmp_path / "bare").mkdir()
    none = cli("snapshot", "check", tmp_path / "bare", whole)
    assert (none.code, none.out) == (2, f"{whole}  2 layouts, complete\n")
    assert "bare: has no snapshots" in none.err


def test_facts_are_shown(tmp_path, cli) -> None:
    path = tmp_path / "launch.txt"
    path.write_text("# nvfp4-launch 1\n# kernel  k.py\n\nlaunches  1\nlaunch.0.grid  3x1x1\n# end 2\n")
    assert cli("snapshot", "show", path).out.splitlines()[1:] == ["launches       1", "launch.0.grid  3x1x1"]
    assert "2 launch facts" in cli("snapshot", "check", path).out


def _entry(root, key):
    folder = root / "sealed" / "traces" / key[:2] / key
    folder.mkdir(parents=True)
    (folder / "trace.json").write_text("{}")
    (folder / "0.ptx").write_bytes(b"x" * 100)


def test_the_cache_is_counted_and_cleared(tmp_path, cli, monkeypatch) -> None:
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(tmp_path))
    for key in ("aa11", "aa22", "bb33"):
        _entry(tmp_path, key)
    place = tmp_path / "environments" / "dsl-4.4.0-python-3.11.7"
    place.mkdir(parents=True)
    (place / "file").write_bytes(b"y" * 50)
    places = ("remote", "results/verdicts", "results/simulations", "results/races-7")
    paid, *known = (tmp_path / "sealed" / place / "aa" / "aa1.json" for place in places)
    former = tmp_path / "traces" / "aa" / "aa11" / "trace.json"  # of an earlier version
    former.parent.mkdir(parents=True)
    former.write_text("{}")
    for path in (paid, *known):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    data = json.loads(cli("cache", "--json").out)
    assert (data["results"], data["result_bytes"]) == (3, 6)
    assert (data["traces"], data["trace_bytes"]) == (3, 3 * 102)
    assert (data["environments"], data["environment_bytes"]) == ([place.name], 50)
    assert data["folder"] == str(tmp_path)
    shown = cli("cache")
    assert "traces        3, 306 B" in shown.out
    assert "results       3, 6 B" in shown.out
    cleared = json.loads(cli("cache", "--clear", "--json").out)
    assert (cleared["removed"], cleared["traces"]) == (3, 0)
    assert (cleared["removed_results"], cleared["results"]) == (3, 0)
    assert paid.is_file(), "what a remote answered was paid for"
    assert not any(path.exists() for path in known)
    assert not former.exists()
    assert place.is_dir(), "environments cost more than traces, and stay"
    assert json.loads(cli("cache", "--clear", "--environments", "--json").out)["removed_environments"] == 1
    assert not place.exists()
    assert cli("cache", "--environments").code == 2


def test_a_trace_that_is_being_made_is_left_alone(tmp_path) -> None:
    _entry(tmp_path, "aa11")
    _entry(tmp_path, "aa22")
    (tmp_path / "sealed" / "locks").mkdir(parents=True)
    held, release = threading.Event(), threading.Event()

    def hold():
        with FileLock(tmp_path / "sealed" / "locks" / "aa11.lock"):
            held.set()
            release.wait(LONGEST_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(LONGEST_S)
        assert clear_traces(tmp_path) == 1
    finally:
        release.set()
        thread.join()
    assert survey(tmp_path).traces == 1
    assert clear_traces(tmp_path) == 1


def test_a_file_with_two_names_is_counted_once(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert 1000 <= folder_bytes(tmp_path) < 1200
