"""Kernels that commands run: files, settings and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions
from pytest_nvfp4.cli.subject import check_kernel_file, configured, relative, root_of
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.settings import KernelSettings, load
from pytest_nvfp4.toolchain.request import Entry, TraceRequest
from pytest_nvfp4.toolchain.trace_archive import MOST_BYTES, SUFFIX

if TYPE_CHECKING:
    from pytest_nvfp4.device.dialogue import Dialogue
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.sim import SimDevice
    from pytest_nvfp4.finding import Finding

_FAMILY = "gpumode"
ELSE_CONTRACT = (
    "name a contract of your own for it (`contract` and `call` in [tool.pytest_nvfp4] of pyproject.toml, see "
    "`nvfp4 guide contracts`), or run a program that launches it with `nvfp4 exec --device sim PROGRAM`"
)
"""Advice for a kernel without custom_kernel(data)."""


@dataclass(frozen=True)
class Runnable:
    """A kernel under a contract, with its settings.

    Attributes:
        label: The file as the user named it.
        spec: The kernel as part of a job.
        base: The folder its files are relative to.
        problems: Problems to run it on.
        root: The folder that paths are shown relative to.
        verified: Problems that it is verified on.
        request: Its trace on the first problem; None for recorded host code, which compiles nothing.
        settings: Its settings; the defaults for recorded host code.
    """

    label: str
    spec: KernelSpec
    base: Path
    problems: tuple[Problem, ...]
    root: Path
    verified: tuple[Problem, ...]
    request: TraceRequest | None = None
    settings: KernelSettings = field(default_factory=KernelSettings)

    def simulator(self, *, timeout_s: float, dialogue: Dialogue | None = None) -> SimDevice:
        """Return the simulator. An extension of torch that the kernel builds is built with its trace, and kept."""
        from pytest_nvfp4.device.sim import SimDevice
        from pytest_nvfp4.toolchain.tracer import Limits, Tracer, builds_extension

        request = self.request
        if request is None or not builds_extension(request):
            return SimDevice(arch=self.spec.arch, dialogue=dialogue)
        tracer = Tracer(root=self.root, limits=Limits(deadline_s=timeout_s), notify=output.note)
        tracer.trace(request)

        def copy_compiled(kernel: KernelSpec, base: Path, into: Path) -> bool:
            files = {str(base / file.path): file.sha256 for file in kernel.files}
            return tracer.copy_compiled(files, arch=kernel.arch, options=kernel.compile_options, into=into)

        return SimDevice(arch=self.spec.arch, compiled=copy_compiled, dialogue=dialogue)

    def cases(self, families: Sequence[str] = (_FAMILY,)) -> list[JobCase]:
        """Return one case for every problem and input family."""
        from pytest_nvfp4.device.job import JobCase, ProblemSpec

        return [
            JobCase(problem=ProblemSpec.of(problem), family=family)
            for problem in self.problems
            for family in dict.fromkeys(map(contract_of(problem).family, families))
        ]

    def finding_text(self, finding: Finding) -> str:
        """Return a finding as text, with its file relative to the root."""
        return str(replace(finding, file=finding.file and relative(finding.file, self.root)))


def runnable(
    kernel: Path,
    how: RunOptions,
    *,
    simulated: bool,
    label: str | None = None,
    within: Path | None = None,
    problems: tuple[Problem, ...] = (),
) -> Runnable:
    """Return the kernel at a path, with its settings.

    Args:
        kernel: Its file.
        how: Options of the command line; without problems, the first of the kernel's own is run.
        simulated: Whether to prefer the problems that the settings name for simulations.
        label: Name for messages; the path by default.
        within: Folder that bounds the search for settings (an extracted git revision).
        problems: Problems in place of the kernel's own, unless the options name some.

    Raises:
        InputError: The file is not a kernel that can be run, or it cannot be read.
        SettingsError, ProblemError: A setting or the name of a problem is invalid.
    """
    from pytest_nvfp4.device.job import KernelSpec

    label = label or str(kernel)
    if kernel.suffix == SUFFIX:
        if how != RunOptions(how.names):
            raise InputError(
                f"{label}: is a kernel that was compiled already: leave out --arch, --compile-option and --config"
            )
        return _recorded(kernel, how.names or [problem.name for problem in problems])
    check_kernel_file(kernel, label=label, has_entry=True)
    path = kernel.resolve()
    settings = load(root_of(path, within))
    own = configured(settings, path, name=how.configuration, label=label)
    if not own.is_run:
        raise InputError(f"{label}: has an entry in its settings; {ELSE_CONTRACT}")
    own = own.with_own_problems()
    check_kernel_file(path, label=label, has_entry=own.call is not None or own.called == "run", way=ELSE_CONTRACT)
    default = (own.simulate if simulated else None) or own.problems or own.verify or own.kernel_contract.tests
    chosen = settings.resolve_problems(how.names, contract=own.contract) if how.names else problems
    problems = chosen or default[:1]
    options = (*own.compile_options, *how.compile_options)
    for problem in problems:
        contract_of(problem).require(problem)
    try:
        source, entry = f"{settings.file}, call", None
        if own.own_contract is not None:
            entry = Entry.of_call(own.call, kernel=path, function=own.called, root=settings.root, source=source)
        spec, base = KernelSpec.from_files(
            path,
            roots=(settings.root,),
            entry=None if entry is None else entry.function,
            entry_file=None if entry is None else entry.file,
            **replace(own, arch=how.arch or own.arch, compile_options=options).of_job,
        )
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{label}: cannot be read: {error}") from error
    request = TraceRequest(
        path,
        problems[0],
        entry=entry,
        calls=entry is not None,
        arch=spec.arch,
        options=spec.compile_options,
        readable=own.readable,
        network=own.network,
    )
    verified = own.verify or own.kernel_contract.tests
    return Runnable(label, spec, base, problems, settings.root, verified, request, own)


def _recorded(path: Path, names: Sequence[str]) -> Runnable:
    """Return the kernel with recorded host code in a file that ``nvfp4 trace`` wrote."""
    from pytest_nvfp4.device.recorded import recorded
    from pytest_nvfp4.isolation.door import DoorError
    from pytest_nvfp4.isolation.door.files import read_file

    label, base = str(path), path.resolve().parent
    try:
        kernel = recorded(read_file(path, source=f"{label}:", most=MOST_BYTES), source=f"{label}:")
        problems = tuple(case.problem.problem() for case in kernel.cases)
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror}") from error
    except (DoorError, ProblemError) as error:
        raise InputError(str(error)) from error
    known = [problem.name for problem in problems]
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"{label}: was recorded on {', '.join(known)}, not on {unknown[0]}: leave out --problem, or record it with "
            "`nvfp4 trace KERNEL --problem NAME`"
        )
    return Runnable(label, kernel.kernel, base, problems, base, problems)
