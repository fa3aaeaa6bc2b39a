"""``nvfp4 prove``, ``prove cta-indexing``, ``prove scale-factors`` and ``prove pipeline``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.cli.prove.options import finish, groups_of, proof_options
from pytest_nvfp4.cli.prove.pipeline import pipeline_command
from pytest_nvfp4.cli.subject import findings_text, resolve
from pytest_nvfp4.cli.tracing import Traced, trace, traced_kernel
from pytest_nvfp4.proof.cta_indexing import DEFAULT_GROUPS
from pytest_nvfp4.proof.statement import Claim, Limits


@click.group("prove", invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Prove every statement that needs no kernel.")
@proof_options
@click.pass_context
def prove_command(
    ctx: click.Context, *, everything: bool, brief: bool, require: bool, query_ms: int, result: ResultWriter
) -> None:
    """Prove the CTA map, and that scale factors are where the MMA reads them.

    Each statement is shown in prose and formulas with its preconditions and its negative controls: wrong versions of
    the statement, which must be refuted with a counterexample. A statement is proved (by z3, by canonical form, or
    exhaustively), refuted, or unknown; unknown is no pass. Exit code 1 unless everything is proved. z3 is optional:
    without pip install 'pytest-nvfp4[proof]' its statements are unknown, and fail only with --require.
    """
    if ctx.invoked_subcommand is not None:
        given = ctx.get_parameter_source("query_ms") is click.core.ParameterSource.COMMANDLINE
        if everything or brief or require or given or result != ResultWriter():
            raise click.UsageError(f"give options after {ctx.invoked_subcommand!r}; --all takes no subcommand")
        return
    if not everything:
        raise click.UsageError("choose what to prove: --all, cta-indexing, scale-factors KERNEL or pipeline KERNEL")
    from pytest_nvfp4.proof.catalogue import judge_all, pure_claims

    helpers, missing = _helper_claims()
    statements = judge_all((*pure_claims(), *helpers), Limits(query_ms=query_ms))
    finish(ctx, statements, result=result, brief=brief, require=require, title="NVFP4 proofs", missing=missing)


def _helper_claims() -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """Return the claims on the layouts that the installed DSL's helpers build, or the reason why there are none."""
    from importlib.util import find_spec

    from pytest_nvfp4.proof.scale_traced import find_scale_factors, gmem_claim, helper_claim

    if find_spec("cutlass") is None:
        return (), ("the layouts that the DSL's helpers build: nvidia-cutlass-dsl is not installed",)
    probe = Path(__file__).parents[2] / "toolchain" / "scale_probe.py"
    traced = trace(resolve(probe, KernelOptions(entry="build", problem="gpumode-0"), label="the DSL's helpers"))
    if not traced.trace.ok:
        return (), (f"the layouts that the DSL's helpers build: {findings_text(traced.trace, traced.subject)}",)
    records = traced.listing.records
    version = traced.trace.dsl_version
    return (
        gmem_claim(find_scale_factors(records).gmem, topic="scale-factors.helpers"),
        helper_claim(records, dsl=version),
    ), ()


def _tile(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a tile; write it as 128x128", ctx=ctx, param=param)
    return int(match[1]), int(match[2])


@prove_command.command("cta-indexing")
@click.option(
    "--groups",
    metavar="G[,G...]",
    callback=groups_of,
    help="Numbers of groups for the statement on given numbers, such as 8, 1-16 or 2,4,8; the other statements hold "
    f"for any number.  [default: {','.join(map(str, DEFAULT_GROUPS))}]",
)
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="Also map every CTA of this problem.")
@click.option("--shape", "shapes", multiple=True, metavar="MxNxK[,...]", help="Also map every CTA of these groups.")
@click.option(
    "--tile", callback=_tile, default="128x128", show_default=True, metavar="MxN", help="Output tile of a CTA."
)
@click.option("--emit-snippet", is_flag=True, help="Write the map as CuTe DSL code and exit.")
@click.option("--search", type=click.Choice(("binary", "scan")), default="binary", help="Search of the snippet.")
@click.option("--raster", type=click.Choice(("m", "n")), default="m", help="Fastest dimension of the snippet.")
@proof_options
@click.pass_context
def cta_indexing_command(
    ctx: click.Context,
    *,
    groups: tuple[int, ...] | None,
    problems: tuple[str, ...],
    shapes: tuple[str, ...],
    tile: tuple[int, int],
    emit_snippet: bool,
    search: str,
    raster: str,
    brief: bool,
    require: bool,
    query_ms: int,
    result: ResultWriter,
) -> None:
    """Prove that every output tile of a grouped GEMM is computed by exactly one CTA.

    The statements cover linear scan and binary search, M-major and N-major rasters, sorted groups, 2-CTA clusters and
    persistent grids, for any number of groups and any sizes, and 32-bit integers with their exact bounds. They are
    about the map that --emit-snippet writes; the coverage check tests whether a kernel computes every tile.
    """
    if emit_snippet:
        if problems or shapes or groups or result != ResultWriter():
            raise click.UsageError("--emit-snippet writes code only; it takes --tile, --search and --raster")
        from pytest_nvfp4.proof.snippet import cta_snippet

        output.write(cta_snippet(tile_m=tile[0], tile_n=tile[1], search=search, raster=raster))  # type: ignore[arg-type]
        return
    from pytest_nvfp4.proof.catalogue import cta_claims, judge_all

    claims = (*cta_claims(groups or DEFAULT_GROUPS), *_problem_claims(problems, shapes, tile))
    title = "The CTA map of a grouped GEMM"
    finish(ctx, judge_all(claims, Limits(query_ms=query_ms)), result=result, brief=brief, require=require, title=title)


def _problem_claims(problems: Sequence[str], shapes: Sequence[str], tile: tuple[int, int]) -> tuple[Claim, ...]:
    from pytest_nvfp4.problem import parse_shape
    from pytest_nvfp4.proof.cta_indexing import on_problem
    from pytest_nvfp4.settings import find_root, load

    chosen = [*load(find_root(Path.cwd())).resolve_problems(list(problems)), *map(parse_shape, shapes)]
    try:
        return tuple(
            on_problem(problem.name, [(group.m, group.n) for group in problem.groups], tile_m=tile[0], tile_n=tile[1])
            for problem in chosen
        )
    except ValueError as error:
        raise InputError(str(error)) from error


@prove_command.command("scale-factors")
@traced_kernel
@click.option("--static", is_flag=True, help="Do not simulate KERNEL, so that its addresses are not followed.")
@proof_options
@click.pass_context
def scale_factors_command(
    ctx: click.Context,
    *,
    traced: Traced,
    static: bool,
    brief: bool,
    require: bool,
    query_ms: int,
    result: ResultWriter,
) -> None:
    """Prove that KERNEL's scale factors are where the MMA reads them.

    The layouts in global memory, shared memory and TMEM, the TMA loads and the copies to TMEM come from its trace.
    Every (row, k-block) of a tile is followed to the lane, column and byte that the MMA reads. The addresses come from
    a simulation of two groups of 256x256x1024, whose inputs say where they come from: coordinates of TMA loads,
    addresses of copies, and operands of MMAs. The statements on cuBLAS's 128x4 layout, for all m and k, are included.
    """
    from pytest_nvfp4.cli.prove.addresses import follow
    from pytest_nvfp4.proof.catalogue import judge_all, scale_claims
    from pytest_nvfp4.proof.scale_traced import claims_of, find_scale_factors

    found = find_scale_factors(traced.listing.records)
    missing = (
        found.missing
        if traced.trace.ok
        else ("the kernel did not compile; these are the layouts seen until then", *found.missing)
    )
    own = follow(traced, claims_of(found), static=static)
    statements = judge_all((*own, *scale_claims()), Limits(query_ms=query_ms))
    title = f"Scale factors of {traced.subject.description}"
    finish(ctx, statements, result=result, brief=brief, require=require, title=title, missing=missing)


prove_command.add_command(pipeline_command)
