"""Executables that stand in for command lines of others, which cannot be run in a test.

They follow what those document and write (popcorn-cli's source and kernelbot's report; the help of wafer-ai 0.0.85).
They prove that this side speaks to such a program, not that the real ones still are like this.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
OTHER = "m: [256, 72]; n: [512, 384]; k: [256, 256]; g: 2; seed: 1111"
REPORT = f"""
Running on:
* GPU: `NVIDIA B200`
* CPU: `some`

✅ Passed 2/2 tests:
```
✅ {TESTS}
✅ {OTHER}
```
Benchmarks:
```
m: [80, 176]; n: [4096, 4096]; k: [7168, 7168]; g: 2; seed: 1111
 ⏱ 27.9 ± 0.05 µs
 ⚡ 27.5 µs 🐌 30.1 µs

m: [40]; n: [7168]; k: [2048]; g: 1; seed: 1111
 ⏱ 1.24 ms
```
"""
TESTING_FAILED = f"""# Testing failed
Command ```bash
python3 eval.py test```
ran successfully in 3.10 seconds, but did not pass all tests.

Test log:
```
✅ {TESTS}
❌ {OTHER}
> mismatch found! custom implementation doesn't match reference: 12 of 18432
```
"""
RUNNING_FAILED = """# Running failed
Command ```bash
python3 eval.py test```
exited with error code **112** after 2.50 seconds.
Program stderr:
RuntimeError: no
"""
TIMED_OUT = "# Running failed\nCommand ```bash\npython3 eval.py```\n**timed out** after 180.00 seconds."
JSON = """Geomean score (public) on B200_Nebius: 0.00001311 s
{
  "submission_id": 4711,
  "leaderboard": "nvfp4_group_gemm",
  "file_name": "kernel.py",
  "done": true,
  "runs": [
    {"mode": "test", "secret": false, "runner": "B200_Nebius", "score": null, "passed": true,
     "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:09Z"},
    {"mode": "leaderboard", "secret": false, "runner": "B200_Nebius", "score": 1.311e-05, "passed": true,
     "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:09Z"}
  ]
}
"""

_POPCORN = """
import json, os, pathlib, sys, time
home = pathlib.Path({folder!r})
with open(home / "calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
args = sys.argv[1:]
if args[:1] != ["submit"]:
    sys.exit("error: unrecognized subcommand")
if "--help" in args:
    print("Usage: popcorn-cli submit [OPTIONS] [FILEPATH]", {options!r})
    sys.exit()
given = dict(zip(args[1:], args[2:]))
answer = home / "answer"
if (home / "sleep").exists():
    (home / "starting").write_text(str(os.getpid()))
    (home / "starting").rename(home / "started")
    time.sleep(600)
if not answer.exists():
    print((home / "error").read_text(), file=sys.stderr)
    sys.exit(1)
text = answer.read_text()
if "--output" in given:
    pathlib.Path(given["--output"]).write_text(text)
else:
    print("Submitting solution directly with:\\nSubmission result:", text)
"""
_WAFER = """
import json, os, pathlib, shutil, subprocess, sys
home = pathlib.Path({folder!r})
args = sys.argv[1:]
with open(home / "calls", "a") as calls:
    calls.write(json.dumps([args, dict(os.environ)]) + "\\n")
verb = args[:2]
HELP = {help!r}
if "--help" in args:
    known = HELP.get(" ".join(verb))
    if known is None:
        sys.exit("No such command")
    print(known)
    sys.exit()
if (home / "error").exists():
    sys.exit((home / "error").read_text())
if verb == ["sandbox", "create"]:
    print("Sandbox sandbox-1a2b created on box. Attach: wafer sandbox attach sandbox-1a2b --target box")
elif verb == ["sandbox", "delete"]:
    import time
    time.sleep(0.3)
    (home / "deleted").write_text(args[2])
elif verb == ["sandbox", "run"]:
    split = args.index("--")
    given = dict(zip(args[2:split], args[3:split]))
    there = home / "sandbox" / given["--cd"].lstrip("/")
    shutil.copytree(given["--sync"], there)
    print("Synced", file=sys.stderr)
    if (home / "sleep").exists():
        (home / "starting").write_text(str(os.getpid()))
        (home / "starting").rename(home / "started")
        import time
        time.sleep(600)
    done = subprocess.run(args[split + 1:], cwd=there, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = done.stdout.decode()
    (home / "left").write_text(str(there.exists()))
    if (home / "cut").exists():
        out = out[: len(out) * 2 // 3]
    print(out)
    sys.exit(done.returncode)
"""
WAFER_HELP = {
    "sandbox run": "--target -t --sandbox -s --sync --cd --timeout-sec --idle-timeout-sec --help",
    "sandbox create": "--target -t --timeout-hours --help",
}


def _executable(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def popcorn(folder: Path, *, options: str = "--gpu --leaderboard --mode --output --no-tui") -> Path:
    """A popcorn-cli that answers with the file ``answer`` beside it, or fails with ``error``."""
    return _executable(folder / "popcorn-cli", _POPCORN.format(folder=str(folder), options=options))


def wafer(folder: Path, *, help_: dict[str, str] | None = None) -> Path:
    """A wafer whose sandbox is a folder of this machine."""
    return _executable(folder / "wafer", _WAFER.format(folder=str(folder), help=WAFER_HELP if help_ is None else help_))
