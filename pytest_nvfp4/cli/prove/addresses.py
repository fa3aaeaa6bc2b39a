"""Addresses of a kernel for ``nvfp4 prove scale-factors``: those of a simulated call, and claims on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.subject import relative
from pytest_nvfp4.cli.tracing import Traced
from pytest_nvfp4.proof.statement import Claim
from pytest_nvfp4.temporary import temporary_folder

_SHAPE = "256x256x1024,256x256x1024"
"""Two groups, several tiles of either direction, more k-tiles than most kernels have stages."""
_UNSUPPORTED = frozenset({"unsupported", "internal"})
"""Kinds of findings that say nothing about the kernel."""
_TOPIC = "scale-factors.addresses"


def follow(traced: Traced, claims: Sequence[Claim], *, static: bool) -> tuple[Claim, ...]:
    """Return the claims with their scope, and the claims on the addresses of a simulated call before them.

    Args:
        traced: The kernel.
        claims: The claims on its layouts.
        static: Whether it must not be simulated.
    """
    from pytest_nvfp4.proof.operand_claims import with_scope

    found = "it is not simulated (--static)" if static else _simulated(traced)
    if isinstance(found, str):
        return with_scope(claims, f"addresses not followed: {found}")
    made, tiles = found
    scope = f"addresses followed on {_SHAPE}, {tiles}"
    return (*with_scope(made, scope), *with_scope(claims, scope))


def _simulated(traced: Traced) -> tuple[tuple[Claim, ...], str] | str:
    """Return the claims on the addresses and the tiles that they are about, or why they are not followed."""
    from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
    from pytest_nvfp4.device.sim import SimDevice
    from pytest_nvfp4.device.simulate import simulate
    from pytest_nvfp4.problem import parse_shape
    from pytest_nvfp4.proof.operand_claims import address_claims
    from pytest_nvfp4.proof.operand_record import parse

    request = traced.subject.request
    device = SimDevice(arch=request.arch)
    if not traced.trace.ok:
        return "the kernel did not compile"
    if request.entry is not None:
        return "only a kernel with custom_kernel(data) can be simulated here"
    if (unsupported := device.unsupported(request.arch)) is not None:
        return unsupported
    problem = parse_shape(_SHAPE)
    try:
        spec, base = KernelSpec.from_files(
            request.kernel,
            roots=request.roots,
            arch=request.arch,
            compile_options=request.options,
            readable=request.readable,
            network=request.network,
        )
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"the kernel's files cannot be read: {error}"
    with (
        temporary_folder("prove") as folder,
        output.working(f"following the addresses of {traced.subject.label} on {_SHAPE}"),
    ):
        (done,) = simulate(
            device, spec, [JobCase(problem=ProblemSpec.of(problem), family="gpumode")], folder=Path(folder), base=base,
            deadline_s=traced.subject.timeout_s, provenance=True,
        )  # fmt: skip
    root = traced.subject.root
    said = [each for each in done.errors if each.kind not in _UNSUPPORTED]
    if done.operands is None or (done.errors and not said):
        first = done.errors[0].message if done.errors else done.status
        return f"the call cannot be simulated: {first}"
    errors = [
        (f"{relative(each.file, root)}:{each.line}: " if each.file else "") + each.message.partition("\n")[0]
        for each in sorted(said, key=lambda each: each.kind != "provenance")
    ]
    try:
        record = parse(done.operands)
    except ValueError as error:
        return f"the record of operands cannot be read: {error}"
    if record.not_followed and not errors:
        return record.not_followed
    depths = {number: group.k for number, group in enumerate(problem.groups)}
    made = address_claims(record, depths=depths, errors=errors, topic=_TOPIC)
    if record.not_followed:
        # What the call shows to be wrong is a refutation; what it shows of the rest is no proof.
        return made[-1:], "up to a fault"
    return made, "every tile"
