"""``nvfp4 cost OLD NEW``, ``nvfp4 model OLD NEW`` and ``nvfp4 history`` on snapshots; one kernel is simulated."""

import json

import pytest

from tests.cli.helpers import git
from tests.cli.snapshot_samples import PROBLEM, cost, model
from tests.cli.test_cost_and_run import FILL


class TestCost:
    def test_more_is_worse_and_less_is_not(self, cli, tmp_path):
        old, new = cost(tmp_path / "old.txt", load_bytes=100, store_bytes=50), tmp_path / "new.txt"
        shown = cli("cost", old, cost(new, load_bytes=110, store_bytes=40))
        assert shown.code == 1
        assert "launch.0.tma.load.bytes" in shown.out
        assert "+10.0 %" in shown.out
        assert "worse" in shown.out
        assert "none is a time" in shown.out
        less = cli("cost", old, cost(new, load_bytes=90, store_bytes=50), "--json")
        assert less.code == 0
        (problem,) = json.loads(less.out)["problems"]
        assert [(fact["name"], fact["gates"]) for fact in problem["facts"]] == [("launch.0.tma.load.bytes", False)]
        assert "4 facts are equal" in cli("cost", old, old).out

    def test_what_cannot_be_compared(self, cli, tmp_path):
        old = cost(tmp_path / "old.txt", load_bytes=100)
        other = cost(tmp_path / "new.txt", problem="1x128x256")
        for arguments, says in (
            ((old,), "is a snapshot; name what to compare it with"),
            ((old, other), "name one --problem, or snapshots of the same problem"),
            ((old, model(tmp_path / "m.txt", 5.0)), "is no snapshot of the check 'cost'"),
            ((old, tmp_path / "none.py"), "no such file"),
        ):
            shown = cli("cost", *arguments)
            assert shown.code == 2
            assert says in shown.err

    @pytest.mark.slow
    def test_a_kernel_of_a_revision_is_called_on_the_problem_of_the_snapshot(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "fill.py").write_text(FILL)
        git("init", "-q", cwd=tmp_path)
        git("add", "fill.py", cwd=tmp_path)
        git("commit", "-qm", "fill", cwd=tmp_path)
        (tmp_path / "fill.py").write_text("")
        shown = cli("cost", cost(tmp_path / "old.txt", problem=PROBLEM), "HEAD:fill.py", "--json")
        assert shown.code == 1, shown.err
        data = json.loads(shown.out)
        assert data["new"]["kind"] == "kernel"
        facts = {fact["name"]: fact["new"] for fact in data["problems"][0]["facts"]}
        assert facts["launch.0.global.store.bytes"] == str(40 * 128 * 2)


class TestModel:
    def test_slower_beyond_the_tolerance_fails(self, cli, tmp_path):
        old = model(tmp_path / "old.txt", 10.0)
        shown = cli("model", old, model(tmp_path / "new.txt", 12.0, path_us=3.0))
        assert shown.code == 1
        assert "+20.0 %" in shown.out
        assert "+2.000 us: launch.0 mma.multiplying @ gemm()" in shown.out
        assert "Nothing was run on a GPU" in shown.out
        within = cli("model", old, model(tmp_path / "new.txt", 10.5), "--json")
        assert within.code == 0
        assert json.loads(within.out)["problems"][0]["share"] == pytest.approx(0.05)

    def test_times_of_other_tables_are_not_compared(self, cli, tmp_path):
        old, new = model(tmp_path / "old.txt", 10.0), model(tmp_path / "new.txt", 10.0, table="2 f own")
        shown = cli("model", old, new)
        assert shown.code == 2
        assert "are of another table (table 1 0123456789abcdef shipped and 2 f own)" in shown.err


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel with three recorded revisions, of which the first has a time of another table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "k.py").write_text("def custom_kernel(data): ...\n")
    folder = tmp_path / "snapshots" / "k"
    git("init", "-q", cwd=tmp_path)
    for at, (loaded, us) in enumerate([(300, 30.0), (200, 20.0), (100, 10.0)]):
        cost(folder / f"cost[{PROBLEM}].txt", load_bytes=loaded)
        model(folder / f"model[{PROBLEM}].txt", us, **({"table": "0 f own"} if at == 0 else {}))
        git("add", ".", cwd=tmp_path)
        git("commit", "-qm", f"tune step {at}", cwd=tmp_path)
    return tmp_path / "k.py"


class TestHistory:
    def test_counters_by_revision(self, cli, kernel):
        shown = cli("history", kernel)
        assert shown.code == 0, shown.err
        assert f"on {PROBLEM}" in shown.out
        row = next(line for line in shown.out.split("\n") if "tma.load.bytes" in line)
        assert row.split() == ["tma.load.bytes", "300", "100", "-66.7", "%", "█▅▁"]
        row = next(line for line in shown.out.split("\n") if "modelled_us" in line)
        assert row.split() == ["modelled_us", "20", "10", "-50.0", "%", "·█▁"]
        assert "tune step 1: tma.load.bytes 300 -> 200" in shown.out
        assert "1 modelled times are of another table" in shown.out
        assert "working tree" not in shown.out

    def test_the_working_tree_is_the_last_point_if_it_differs(self, cli, kernel):
        cost(kernel.parent / "snapshots" / "k" / f"cost[{PROBLEM}].txt", load_bytes=50)
        shown = cli("history", "k.py", "--json", "--counter", "tma.*", "--last", "1")
        revisions = json.loads(shown.out)["problems"][0]["revisions"]
        assert [revision["counters"]["tma.load.bytes"] for revision in revisions] == [100, 50]
        assert revisions[1]["commit"] is None

    def test_a_picture(self, cli, kernel):
        shown = cli("history", "k.py", "--svg", "new/trend.svg", "--html", "new/page.html")
        assert shown.code == 0, shown.err
        assert "created the folder new" in shown.err
        picture = (kernel.parent / "new" / "trend.svg").read_text()
        assert picture.count("<polyline") == 2
        assert "tma.load.bytes" in (kernel.parent / "new" / "page.html").read_text()

    def test_what_is_not_there(self, cli, kernel, tmp_path_factory):
        assert "known are" in cli("history", "k.py", "--counter", "none*").err
        assert f"there are those of {PROBLEM}" in cli("history", "k.py", "--problem", "gpumode-0").err
        (kernel.parent / "other.py").write_text("")
        assert "no revision has snapshots of cost or model" in cli("history", "other.py").err
        away = tmp_path_factory.mktemp("away") / "k.py"
        away.write_text("")
        done = cli("history", away)
        assert done.code == 2
        assert "is in no git repository" in done.err
