"""The candidates of the worker without an agent, one an iteration, each with what the loop has to make of it.

They change `tests/sim/mutants/structures/epilogue_smem.py`, beginning with one stage and one buffer of C. The
expectations are those of a person who reads the change: a right and faster kernel is promoted, and everything else is
refused for the reason that stands here. Only the standard library is imported, because the loop's sandbox holds nothing
else of this repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KERNEL = "gemm.py"
"""The kernel's file, at the top of the repository."""
Edit = Callable[[str], str]


@dataclass(frozen=True)
class Step:
    """What one run of the worker does, and what the loop has to make of it.

    Attributes:
        name: What an author would call it.
        outcome: Outcome of the verdict.
        edit: Change of the kernel's source; None if the file is not written.
        act: Name of the function of the worker that follows.
        end: How the worker ends.
        gate: Gate that rejects the candidate; several, of which one does, with ``|`` between them.
        says: Pattern of the reason, or of what the next worker is told.
        original: The earlier candidate that it repeats.
    """

    name: str
    outcome: str
    edit: Edit | None = None
    act: str = "propose"
    end: str = "proposed"
    gate: str = ""
    says: str = ""
    original: int | None = None

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of which one rejects the candidate; empty if none does."""
        return tuple(self.gate.split("|")) if self.gate else ()


def constants(**values: int) -> Edit:
    """Return an edit that gives constants at the top level of the kernel other values."""

    def edit(text: str) -> str:
        for name, value in values.items():
            text, count = re.subn(rf"^{name} = \d+$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert count == 1, f"{name} is assigned {count} times"
        return text

    return edit


def replaced(*pairs: tuple[str, str]) -> Edit:
    """Return an edit that replaces texts, each of which stands once in the kernel."""

    def edit(text: str) -> str:
        for old, new in pairs:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the kernel"
            text = text.replace(old, new)
        return text

    return edit


def in_turn(*edits: Edit) -> Edit:
    """Return an edit that does others in their order."""

    def edit(text: str) -> str:
        for each in edits:
            text = each(text)
        return text

    return edit


def appended(code: str, *files: str) -> Edit:
    """Return an edit that appends the texts of hostile programs, and then code."""
    # In the loop's sandbox copies lie beside this file.
    here = Path(__file__).parent
    folder = here if (here / "torch_gemm.py").exists() else here.parents[1] / "hostile/programs/shared"

    def edit(text: str) -> str:
        return "\n\n".join([text, *((folder / name).read_text() for name in files), code, ""])

    return edit


def whole(text: str) -> Edit:
    """Return an edit that replaces the whole file."""
    return lambda _: text


WAIT = "                    cute.arch.cp_async_bulk_wait_group(C_STAGES - 1, read=True)\n"
FENCE = '            cute.arch.fence_proxy("async.shared", space="cta")\n'
COMMIT = "            with cute.arch.elect_one():\n                tcgen05.commit(empty + stage)\n"
PLACE = "    x, y, _ = cute.arch.block_idx()\n"
LOAD = "        for k_tile in cutlass.range(k_tiles, unroll=1):\n"
SCALES_OF_B = "            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], tStSFB)\n"
GRID = ".launch(grid=(cute.ceil_div(m, TILE_M), n // TILE_N, 1)"

TILES = "TILE_M, TILE_N, TILE_K, MMA_K = 128, 128, {}, 64"
SCALES_OF_BLOCK = "tCtSFB[None, None, {}].iterator"

no_fence = replaced((FENCE, ""))
wide = replaced((TILES.format(128), TILES.format(256)))
narrow_epilogue = replaced(("EPI_TILE = (TILE_M, 32)", "EPI_TILE = (TILE_M, 16)"))
first_scales = replaced((SCALES_OF_BLOCK.format("k_block"), SCALES_OF_BLOCK.format("0")))
along_n = replaced(
    (PLACE, PLACE.replace("x, y", "y, x")), (GRID, ".launch(grid=(n // TILE_N, cute.ceil_div(m, TILE_M), 1)")
)
reformatted = replaced((PLACE, f"    # The tile of this CTA.\n\n{PLACE}"), (LOAD, f"{LOAD}            # One stage.\n"))

REMEMBERS = """
ANSWERS = {}
computed = custom_kernel


def custom_kernel(data):
    key = tuple(tensor.data_ptr() for tensors in data[0] for tensor in tensors[:2])
    if key not in ANSWERS:
        ANSWERS[key] = [c.clone() for c in computed(data)]
    for (_, _, c), answer in zip(data[0], ANSWERS[key], strict=True):
        c.copy_(answer)
    return [c for _, _, c in data[0]]
"""
ZEROS = """
def custom_kernel(data):
    for _, _, c in data[0]:
        c.zero_()
    return [c for _, _, c in data[0]]
"""
NOTHING = """
def custom_kernel(data):
    return [c for _, _, c in data[0]]
"""
SEES_NO_GPU = """
import os

on_a_gpu = custom_kernel


def custom_kernel(data):
    return on_a_gpu(data) if os.path.exists("/dev/nvidiactl") else compute(data)
"""
FAST_WHERE_TIMED = """
everywhere = custom_kernel


def custom_kernel(data):
    if [tuple(size[:3]) for size in data[3]] == [(256, 256, 1024)]:
        (a, b, c), (sfa, sfb) = data[0][0], data[2][0]
        compiled()(*pointers(*(tensor.data_ptr() for tensor in (a, b, sfa, sfb, c))), 256, 256, 256)
        return [c]
    return everywhere(data)
"""

TORCH = appended("custom_kernel = compute", "torch_gemm.py")
NUMPY = appended("custom_kernel = fill", "numpy_gemm.py")
NO_GPU = appended(SEES_NO_GPU, "torch_gemm.py")
SLEEPS = appended("import time\nwhile True:\n    time.sleep(1)")

STEPS = (
    Step("comments and blank lines", "duplicate", reformatted, original=0),
    Step("two stages", "faster", constants(STAGES=2)),
    Step("nothing", "no-candidate", end="unchanged"),
    Step("three stages, withdrawn", "no-candidate", constants(STAGES=3), "withdraw", "withdrawn"),
    Step("no proxy fence before the store", "rejected", no_fence, gate="races", says="fence.proxy.async"),
    Step("the same once more", "duplicate", no_fence, original=5),
    Step(
        "commit before the MMAs",
        "rejected",
        in_turn(replaced((COMMIT, "")), replaced((SCALES_OF_B, SCALES_OF_B + COMMIT))),
        gate="races",
        says="tcgen05.commit",
    ),
    Step("no commit to the empty barriers", "rejected", replaced((COMMIT, "")), gate="coverage", says="deadlock"),
    Step("no wait for the store", "rejected", replaced((WAIT, "")), gate="races", says="wait_group"),
    Step("k-tiles of 256", "faster", wide),
    Step("zeros", "rejected", appended(ZEROS), gate="coverage"),
    Step("no launch", "rejected", appended(NOTHING), gate="coverage"),
    Step("the product of torch", "rejected", TORCH, gate="coverage", says="torch"),
    Step("the product of numpy", "rejected", NUMPY, gate="coverage", says="copy from the host"),
    # ``verify`` sees it first where a later input lies at the address of an earlier one.
    Step("answers remembered by address", "rejected", appended(REMEMBERS), gate="verify|coverage", says="later|nan"),
    Step("torch where there is no GPU", "rejected", NO_GPU, gate="coverage", says="torch"),
    Step("a quarter of k where it is timed", "rejected", appended(FAST_WHERE_TIMED), gate="cost", says="outputs wrong"),
    Step("not Python", "rejected", whole("faster, I promise {\n"), gate="compile", says="SyntaxError"),
    Step("bytes", "rejected", act="write_bytes", gate="compile"),
    Step("an empty file", "rejected", whole(""), gate="compile"),
    Step("five megabytes", "rejected", appended("# " + "x" * (5 << 20)), end="violation"),
    Step("no file", "rejected", act="remove", end="violation"),
    Step("a link in place of the file", "rejected", act="link", end="violation"),
    Step("a crash", "no-candidate", act="crash", end="failed"),
    Step("output without end", "no-candidate", act="flood", end="failed"),
    Step("an import without end", "rejected", SLEEPS, gate="compile", says="deadline"),
    Step("an abort at import", "rejected", appended("import os\nos.abort()"), gate="compile", says="SIGABRT"),
    Step("another test", "rejected", constants(STAGES=3), "change_tests", "violation"),
    Step("other snapshots", "rejected", constants(STAGES=3), "change_snapshots", "violation"),
    Step("other settings", "rejected", constants(STAGES=3), "change_settings", "violation"),
    Step("a conftest", "rejected", constants(STAGES=3), "add_conftest", "violation"),
    Step("writes the directory of state", "no-candidate", act="attack_state", end="unchanged"),
    Step("narrow subtiles, said to be fast", "slower", narrow_epilogue, "lie"),
    Step("three stages, a result that no one can read", "faster", constants(STAGES=3), "babble"),
    Step("a value that no one uses", "duplicate", replaced((PLACE, f"{PLACE}    unused = x + y\n")), original=34),
    Step("scale factors of the first block only", "rejected", first_scales, gate="verify"),
    Step("two buffers of C", "faster", constants(C_STAGES=2)),
    Step("tiles along n first", "undecided", along_n),
    Step("more stages than shared memory holds", "rejected", constants(STAGES=9), gate="compile", says="shared memory"),
    Step("four stages", "faster", constants(STAGES=4)),
)  # fmt: skip
