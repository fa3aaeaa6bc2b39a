"""What this process waits for."""

import json
import threading

from pytest_nvfp4.activity import Activities


def stage(name: object) -> bytes:
    return json.dumps({"event": "stage", "name": name, "seconds": 1.0}).encode() + b"\n"


def test_jobs_are_shown_while_they_run_in_the_order_in_which_they_began() -> None:
    activities = Activities()
    begun, go = threading.Event(), threading.Event()

    def other() -> None:
        with activities.doing("other"):
            activities.result(stage("its own"))
            begun.set()
            go.wait()

    thread = threading.Thread(target=other)
    with activities.doing("first"), activities.doing("a part of it"):
        thread.start()
        begun.wait()
        activities.result(b'{"event": "begin"}\n' + stage("import") + stage("compile"))
        assert [(job.name, job.stage) for job in activities.snapshot()] == [("first", "compile"), ("other", "its own")]
        assert str(activities.snapshot()[0]) == "first: compile, 0 s"
    assert [job.name for job in activities.snapshot()] == ["other"]
    go.set()
    thread.join()
    assert activities.snapshot() == []


def test_what_is_no_stage_changes_nothing() -> None:
    activities = Activities()
    activities.result(stage("of nobody"))
    with activities.doing("job"):
        for wrong in (b"", stage("cut")[:-2], stage(1), stage(["x"]), b'{"event": "stage", {\n', b"\xff" * 100):
            activities.result(wrong)
            assert activities.snapshot()[0].stage == ""
        activities.result(stage("::error::\x1b[2J" + "x" * 1000))
        shown = activities.snapshot()[0].stage
        assert "\x1b" not in shown
        assert "::error::" not in shown
        assert len(shown) < 200
