"""Snapshots of costs and modelled times that nobody ran."""

from pathlib import Path

from pytest_nvfp4.toolchain.sheet import Sheet

PROBLEM = "40x128x256"


def cost(file: Path, *, problem: str = PROBLEM, dsl: str = "4.8.1", counts: str = "3", **counters: int) -> Path:
    """Write a snapshot of costs; ``load_bytes=1`` is ``launch.0.tma.load.bytes``."""
    facts = {"launches": "1", "flops.useful": "100"}
    facts |= {f"launch.0.tma.{name.replace('_', '.')}": str(count) for name, count in counters.items()}
    return _write(file, Sheet("cost", {"kernel": "k.py", "problem": problem, "dsl": dsl, "counts": counts}, facts))


def model(file: Path, us: float, *, table: str = "1 0123456789abcdef shipped", path_us: float = 1.0) -> Path:
    """Write a snapshot of a modelled time."""
    origin = {"device": "b200", "table": table, "model": "0123456789ab", "conditions": "gpumode"}
    facts = {"modelled_us": f"{us:.3f}", "launch.0.modelled_us": f"{us:.3f}"}
    facts["launch.0.path.mma.multiplying @ gemm()"] = f"{path_us:.3f}"
    return _write(file, Sheet("model", {"kernel": "k.py", "problem": PROBLEM} | origin, facts))


def _write(file: Path, sheet: Sheet) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sheet.render())
    return file
