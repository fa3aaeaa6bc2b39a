"""The settings of one configuration of a kernel file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from pytest_nvfp4.contracts.base import Contract
from pytest_nvfp4.contracts.own.files import is_definition
from pytest_nvfp4.contracts.registry import contract_named, is_own
from pytest_nvfp4.problem import GROUP_GEMM, Group, Problem

DEFAULT_ARCH = "sm_100a"


class JobSettings(TypedDict):
    """Arguments of ``device.job.KernelSpec.from_files`` that settings determine (see ``KernelSettings``)."""

    arch: str
    compile_options: tuple[str, ...]
    side_stream: bool
    torch_operators: bool
    readable: tuple[str, ...]
    network: bool


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Settings of one configuration of a kernel file.

    Attributes:
        name: Name of the configuration, which is part of node ids; empty for the only one.
        entry: ``FILE::FUNCTION`` relative to the root; None for a kernel that follows GPU MODE's contract.
        contract: Name of its contract, or the absolute ``FILE::NAME`` of the user's own one. None for the one that its
            file is recognised as, and for an entry that is not run.
        call: ``FILE::FUNCTION`` relative to the root, which the contract calls; None for `called`.
        arch: Architecture to compile for.
        problems: The problems it is traced on. None for the default: ``gpumode-0`` for a kernel that follows the
            contract, and one trace without a problem's name for an entry.
        verify: The problems it is verified on, on a device; None for GPU MODE's ten tests.
        simulate: The problems on which the simulator counts what it does; None for those it is traced on.
        fitted: Whether the simulator also runs it on a problem fitted to it (``device.fitted_problem``); None if that
            depends on ``verify`` (see ``on_fitted_problem``).
        benchmark: The problems it is timed on; None for GPU MODE's four benchmarks.
        protected: Patterns (``fnmatch``) of layout names that change only with ``--nvfp4-unprotect``.
        compile_options: Options in addition to the kernel's own.
        cost_tolerance: Patterns of counters, each with the share by which they may grow before the cost check fails
            (infinity for any growth).
        model: The problems on which its time is modelled; none by default.
        model_tolerance: Share by which its modelled time may grow before the model check fails.
        side_stream: Whether its callers may call it while a stream of their own is torch's current one; None for the
            default of its contract (see ``on_side_stream``).
        torch_operators: Whether operators of torch may compute its outputs, as those of a reference or a baseline.
        readable: Files and folders that its host code may read besides its own (``toolchain.own_files``), absolute.
        network: Whether its host code may use the network.
    """

    name: str = ""
    entry: str | None = None
    contract: str | None = None
    call: str | None = None
    arch: str = DEFAULT_ARCH
    problems: tuple[Problem, ...] | None = None
    verify: tuple[Problem, ...] | None = None
    simulate: tuple[Problem, ...] | None = None
    fitted: bool | None = None
    benchmark: tuple[Problem, ...] | None = None
    protected: tuple[str, ...] = ()
    compile_options: tuple[str, ...] = ()
    cost_tolerance: tuple[tuple[str, float], ...] = ()
    model: tuple[Problem, ...] = ()
    model_tolerance: float = 0.1
    side_stream: bool | None = None
    torch_operators: bool = False
    readable: tuple[str, ...] = ()
    network: bool = False

    @property
    def on_fitted_problem(self) -> bool:
        """Whether the simulator also runs it on a problem fitted to it.

        By default a kernel that is verified on problems of the user's own is not: it may take no others.
        """
        if self.kernel_contract.fitted((Group(128, 128, 256),)) is None:
            return False
        return self.verify is None if self.fitted is None else self.fitted

    @property
    def kernel_contract(self) -> Contract:
        """Its contract; that of ``nvfp4_group_gemm`` if it names none."""
        return contract_named(self.contract or GROUP_GEMM)

    @property
    def own_contract(self) -> str | None:
        """The user's own contract, if it has one."""
        return self.contract if self.contract is not None and is_own(self.contract) else None

    @property
    def called(self) -> str:
        """The function of the kernel's file that its contract calls if ``call`` names none."""
        own = self.own_contract
        return "run" if own is not None and is_definition(own.partition("::")[0]) else "custom_kernel"

    def with_own_problems(self) -> KernelSettings:
        """Return the settings with the problems of the user's own contract, which runs for it; as they are without one.

        Its benchmarks are timed and its other problems are verified and simulated, unless the settings name others.

        Raises:
            ProblemError: The contract cannot be used, or has no problem of a name in the settings.
        """
        if self.own_contract is None:
            return self
        from pytest_nvfp4.contracts.own.run import identity, own_problems

        contract = identity(self.own_contract)
        found = own_problems(contract)
        tests = tuple(one for name, one in found.problems.items() if name not in found.benchmarks)

        def known(named: tuple[Problem, ...] | None) -> tuple[Problem, ...]:
            return tuple(found.named(one.name) for one in named or ())

        verify = known(self.verify) or tests or tuple(found.problems.values())
        problems = known(self.problems) or (None if self.entry else verify[:1])
        benchmark = known(self.benchmark) or known(tuple(found.problems[name] for name in found.benchmarks))
        return replace(
            self,
            contract=contract,
            problems=problems,
            verify=verify,
            simulate=known(self.simulate) or known(self.problems) or verify,
            benchmark=benchmark,
            model=known(self.model),
        )

    @property
    def is_run(self) -> bool:
        """Whether it has a contract, which calls it; an entry alone is only compiled."""
        return self.entry is None or self.contract is not None

    @property
    def on_side_stream(self) -> bool:
        """Whether checks call it while another stream than the default one is current.

        By default they do unless it follows GPU MODE's contract, whose own checks call on the default stream.
        """
        if self.side_stream is not None:
            return self.side_stream
        return self.entry is not None or self.own_contract is not None

    @property
    def of_job(self) -> JobSettings:
        """The settings that a job of the kernel carries to a device."""
        return {
            "arch": self.arch,
            "compile_options": self.compile_options,
            "side_stream": self.on_side_stream,
            "torch_operators": self.torch_operators,
            "readable": self.readable,
            "network": self.network,
        }
