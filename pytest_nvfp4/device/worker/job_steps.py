"""The steps of a job that are the same for every worker: import torch, write the sources, end with a status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.tamper import names_harness
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.worker.findings import from_exception
from pytest_nvfp4.toolchain.worker.loading import begin_imports


class StopError(Exception):
    """The job cannot continue; its status and findings have been sent."""


class JobSteps:
    """Steps of one job.

    Args:
        folder: Folder for sources, scratch files and outputs, shared with the parent.
    """

    def __init__(self, job: Job, folder: Path, events: Events) -> None:
        self._job = job
        self._folder = folder
        self._sources = folder / "source"
        self._events = events

    def _finish(self, status: str, *findings: Finding) -> NoReturn:
        for finding in findings:
            self._events.send("finding", **finding.to_dict())
        self._events.send("status", status=status)
        raise StopError

    def _import_torch(self) -> Any:
        begin_imports()
        self._events.stage("import torch")
        try:
            import torch
        except ImportError as error:
            self._finish("unavailable", Finding("environment", f"torch cannot be imported: {error}"))
        return torch

    def _check_arch(self, kernel: KernelSpec, *, name: str, capability: tuple[int, int]) -> None:
        has = f"sm_{capability[0]}{capability[1]}"
        if kernel.arch.rstrip("af") != has:
            self._finish(
                "unsupported",
                Finding("device", f"the kernel is for {kernel.arch}, and {name} is {has}: use another device"),
            )

    def _refuse_entry(self) -> NoReturn:
        """End the job of a kernel that no contract calls."""
        self._finish(
            "unsupported",
            Finding("contract", "the kernel is outside GPU MODE's contract: it has no custom_kernel(data) to call"),
        )

    def _write_sources(self, kernel: KernelSpec) -> None:
        for file in kernel.files:
            path = self._sources / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            if word := names_harness(file.data):
                self._finish(
                    "cheated", Finding("cheat", f"{file.path} names {word}: a kernel must not access its test harness")
                )


def completed(events: Events, act: Callable[[], None]) -> None:
    """Run a job to its last event; an error of the worker itself is a finding."""
    try:
        act()
    except StopError:
        pass
    except BaseException as error:
        finding = from_exception("internal", "the worker itself failed", error, lambda _: False)
        events.send("finding", **finding.to_dict())
        events.send("status", status="error")
    events.end()
