"""The bounded file of a stream: its beginning, its end, and how many bytes lie between."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_nvfp4.loop.work.output_log import OutputLog


@example(most=200, sizes=[100, 150])
@example(most=1, sizes=[3, 0, 5])
@given(st.integers(1, 200), st.lists(st.integers(0, 300), max_size=30))
def test_both_ends_are_kept_and_what_is_dropped_is_counted(most: int, sizes: list[int]) -> None:
    whole = bytes(97 + index % 26 for index in range(sum(sizes)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = OutputLog(path, most=most)
        at = 0
        for size in sizes:
            log.write(whole[at : at + size])
            at += size
        log.close()
        text = path.read_bytes()
    half = max(1, most // 2)
    marked = re.search(rb"\n\[\.\.\. (\d+) bytes dropped \.\.\.\]\n", text)
    if marked is None:
        assert text == whole
        return
    head, tail = text[: marked.start()], text[marked.end() :]
    assert whole.startswith(head)
    assert len(head) == half
    assert whole.endswith(tail)
    assert len(tail) >= half // 2
    assert len(head) + int(marked[1]) + len(tail) == len(whole)
    assert len(text) <= 2 * half + len(marked[0])


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "log").symlink_to("other")
    log = OutputLog(tmp_path / "log", most=100)
    log.write(b"new")
    assert (tmp_path / "log").read_bytes() == b"new", "a view sees it while the stream runs"
    log.close()
    assert (tmp_path / "other").read_text() == "kept"
