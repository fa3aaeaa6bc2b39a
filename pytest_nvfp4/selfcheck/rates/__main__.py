"""Validation of the benchmark check on a device: ``python -m pytest_nvfp4.selfcheck.rates KERNEL --device local``.

Exit code 0 if no rate contradicts the design, 1 if one does, 2 if the validation could not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pytest_nvfp4.bench.regression import Policy
from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.problem import ProblemError, resolve
from pytest_nvfp4.selfcheck.rates import rounds as stored
from pytest_nvfp4.selfcheck.rates.error_rates import analyse
from pytest_nvfp4.selfcheck.rates.experiment import Experiment, ExperimentError, ExperimentPlan
from pytest_nvfp4.temporary import temporary_folder

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


def _report(text: str) -> None:
    click.echo(text, err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("kernel", type=_FILE, required=False)
@click.option("--with", "others", multiple=True, type=_FILE, help="A further file that the kernel imports.")
@click.option("--device", type=click.Choice(["local"]), default="local", help="Where to run.")
@click.option(
    "--problem", "names", multiple=True, default=("gpumode-bench-3",), help="A problem, a set or MxNxK[,...]."
)
@click.option("--rounds", type=click.IntRange(min=5), default=120, help="Rounds a side in one comparison.")
@click.option("--periods", type=click.IntRange(min=5), default=1000, help="Rounds of each arm in a session.")
@click.option("--sessions", type=click.IntRange(min=1), default=8, help="Number of sessions; each is a process.")
@click.option("--effect", "effects", multiple=True, type=float, default=(0.01, 0.03, 0.05), help="Slowdown as a share.")
@click.option("--family", default="gpumode", help="Input family.")
@click.option("--warm-l2", is_flag=True, help="Do not flush the L2 cache before each round.")
@click.option("--arch", default=None, help="Architecture of the kernel; the device's by default.")
@click.option("--budget-s", type=click.FloatRange(min=1), default=240.0, help="Seconds for all sessions.")
@click.option("--seed", type=int, default=0, help="Seed of every order.")
@click.option("--json", "out", type=_OUT, default=None, help="Write the report to this file.")
@click.option("--keep-rounds", type=_OUT, default=None, help="Write the measured rounds to this file (.json.gz).")
@click.option("--from-rounds", type=_FILE, default=None, help="Judge the rounds of this file; measure nothing.")
def main(
    *,
    kernel: Path | None,
    others: tuple[Path, ...],
    device: str,
    names: tuple[str, ...],
    rounds: int,
    periods: int,
    sessions: int,
    effects: tuple[float, ...],
    family: str,
    warm_l2: bool,
    arch: str | None,
    budget_s: float,
    seed: int,
    out: Path | None,
    keep_rounds: Path | None,
    from_rounds: Path | None,
) -> None:
    """Measure the benchmark check's rates of false alarms on KERNEL and of detected slowdowns injected into it."""
    assert device == "local"
    if (kernel is None) == (from_rounds is None):
        raise click.UsageError("name either a KERNEL to measure, or --from-rounds FILE with measured rounds")
    try:
        if kernel is None:
            assert from_rounds is not None
            data, effects = stored.load(from_rounds)
        else:
            with temporary_folder("validate") as scratch:
                local = LocalDevice(probe_folder=Path(scratch))
                info = local.describe()
                _report(f"on {info}")
                spec, _ = KernelSpec.from_files(kernel, others=others, arch=arch or info.arch)
                plan = ExperimentPlan(
                    kernel=spec,
                    problems=resolve(names),
                    effects=effects,
                    periods=periods,
                    sessions=sessions,
                    family=family,
                    cold_l2=not warm_l2,
                    seed=seed,
                    budget_s=budget_s,
                )
                data = Experiment(local, plan, folder=Path(scratch), report=_report).run()
            if keep_rounds is not None:
                stored.save(data, keep_rounds, effects=effects)
        report = analyse(data, rounds=rounds, effects=effects, policy=Policy())
        if out is not None:
            beside = out.with_name(f".{out.name}.{os.getpid()}")
            beside.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
            beside.replace(out)
    except (DeviceUnavailableError, ExperimentError, ProblemError, ValueError, OSError) as error:
        _report(f"error: {error}")
        sys.exit(2)
    click.echo(report.text(), nl=False)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
