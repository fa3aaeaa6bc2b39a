"""Import a kernel's file, find the functions that its caller needs, and watch what it does to its test harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest_nvfp4.profiler  # noqa: F401 - before the kernel, which may import it and may not read files of this package
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.seal.audit import KernelAudit
from pytest_nvfp4.isolation.seal.handlers import hide_frames
from pytest_nvfp4.toolchain.cache_root import default_root
from pytest_nvfp4.toolchain.worker import contract, options
from pytest_nvfp4.toolchain.worker.findings import from_exception
from pytest_nvfp4.toolchain.worker.loading import load

_MOST_REPORTED: Final = 5


class RefusedKernelError(Exception):
    """A kernel that cannot be imported or called; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class ImportedKernel:
    """The function that is called, and the one that compiles it for a problem."""

    function: Callable[..., Any]
    prepare: Callable[[Any], Any] | None


def import_kernel(
    sources: Path,
    *,
    main: str,
    entry: str | None,
    compile_options: Sequence[str],
    own: Callable[[str], bool],
) -> ImportedKernel:
    """Import a kernel whose files lie in ``sources``.

    Args:
        main, entry, compile_options: See ``device.job.KernelSpec``.
        own: Returns whether a source file is the kernel's.

    Raises:
        RefusedKernelError: it cannot be imported or called.
    """
    if compile_options:
        try:
            options.install(compile_options)
        except (options.OptionError, ImportError) as error:
            raise RefusedKernelError(Finding("options", str(error))) from None
    source, _, name = entry.rpartition("::") if entry else (main, "", "custom_kernel")
    file = Path(source).name
    contract.provide_task()
    try:
        module = load(sources / source, beside=[sources])
    except BaseException as error:
        raise RefusedKernelError(from_exception("import", f"{file} could not be imported", error, own)) from None
    try:
        function, prepare = getattr(module, name, None), getattr(module, "compile_kernel", None)
    except Exception as error:  # a module may have a __getattr__ of its own
        finding = from_exception("contract", f"{file}: {name} cannot be looked up", error, own)
        raise RefusedKernelError(finding) from None
    if not callable(function):
        signature = "()" if entry else "(data)"
        raise RefusedKernelError(Finding("contract", f"{file} defines no {name}{signature}"))
    if not entry and (unusable := contract.uncallable(function)) is not None:
        raise RefusedKernelError(unusable)
    if entry or not callable(prepare):
        return ImportedKernel(function, None)
    return ImportedKernel(function, lambda sizes: contract.prepare(prepare, sizes))


def watch(
    *, folder: Path, sources: Path, own: Callable[[str], bool], seal: Callable[[KernelAudit], None] | None = None
) -> Callable[[], list[str]]:
    """Watch from now on what a kernel requests of the objects around it; the result returns the first accesses.

    ``folder`` is the job's, ``sources`` that of the kernel's files. ``seal`` is called before the audit starts.
    """
    audit = KernelAudit(
        own=own,
        folder=folder,
        allowed=(sources, folder / "scratch", folder / "ptx"),
        read_only=(Path(__file__).resolve().parents[2], default_root()),
    )
    _trap_oracle(audit)
    hide_frames()
    if seal is not None:
        seal(audit)
    audit.start()
    return lambda: audit.messages[:_MOST_REPORTED]


def _trap_oracle(audit: KernelAudit) -> None:
    """Record calls of the oracle: only the parent judges, so that a call in the worker comes from the kernel."""
    from pytest_nvfp4.numerics import inputs, oracle

    exact_product = oracle.exact_product

    def trap(**operands: Any) -> oracle.Exact:
        audit.add("the kernel computes its result with the oracle of its test harness")
        return exact_product(**operands)

    for module in (inputs, oracle):
        vars(module)["exact_product"] = trap
