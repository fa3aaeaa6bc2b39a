"""``nvfp4 run`` of a CUDA C++ or PTX file: options of the launch, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import add_options
from pytest_nvfp4.report.document import Block, Document, Facts, Section, Styled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_nvfp4.device.source import SourceResult

SUFFIXES: Final = (".cu", ".cuh", ".ptx")
_MOST_SHOWN: Final = 8
_MOST_FINDINGS: Final = 20


@dataclass(frozen=True)
class SourceOptions:
    """Options of ``nvfp4 run`` for a file without host code; each is unset by default."""

    kernel_name: str | None = None
    grid: str | None = None
    block: str | None = None
    cluster: str | None = None
    smem: int | None = None
    arguments: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    standard: str | None = None
    cooperative: bool = False
    expected: tuple[str, ...] = ()
    tolerance: float | None = None
    out: Path | None = None

    def given(self) -> list[str]:
        """Return the options that are set."""
        return [_FLAGS[each.name] for each in fields(self) if getattr(self, each.name) != each.default]


_FLAGS: Final = {
    **{"kernel_name": "--kernel", "arguments": "--arg", "arrays": "--array", "defines": "-D", "includes": "-I"},
    **{"standard": "--std", "expected": "--expect"},
    **{name: f"--{name}" for name in ("grid", "block", "cluster", "smem", "cooperative", "tolerance", "out")},
}
_OPTIONS = (
    click.option(
        "--kernel", "kernel_name", metavar="NAME",
        help="CUDA C++ or PTX file: the kernel, such as scale, scale<3> or a symbol.  [default: the only one]",
    ),
    click.option("--grid", metavar="X[,Y,Z]", help="CUDA C++ or PTX file: CTAs of the grid."),
    click.option("--block", metavar="X[,Y,Z]", help="CUDA C++ or PTX file: threads of a CTA."),
    click.option("--cluster", metavar="X[,Y,Z]", help="CUDA C++ or PTX file: CTAs of a cluster.  [default: 1]"),
    click.option("--smem", type=click.IntRange(min=0), metavar="BYTES", help="Dynamic shared memory.  [default: 0]"),
    click.option(
        "--arg", "arguments", multiple=True, metavar="VALUE",
        help="Argument of the kernel, in order (`nvfp4 guide cuda`): 5, f32:0.5, x=f16[64,32]:random, y=f32[64], "
        "FILE.npy, &x, map(x,box=64x8), ptrs(x,y).",
    ),
    click.option(
        "--array", "arrays", multiple=True, metavar="NAME=VALUE", help="Array that is no argument, for map and ptrs."
    ),
    click.option("-D", "--define", "defines", multiple=True, metavar="NAME[=VALUE]", help="Macro of CUDA C++."),
    click.option(
        "-I", "--include", "includes", multiple=True, metavar="FOLDER", type=click.Path(path_type=Path),
        help="Folder of headers of CUDA C++.",
    ),
    click.option("--std", "standard", metavar="STD", help="Language of CUDA C++: c++17, c++20."),
    click.option("--cooperative", is_flag=True, help="Launch all CTAs at once."),
    click.option("--expect", "expected", multiple=True, metavar="NAME=FILE.npy", help="Required elements of an array."),
    click.option(
        "--tolerance", type=click.FloatRange(min=0), metavar="T",
        help="Largest difference from --expect, absolute and relative added.  [default: equal bits]",
    ),
    click.option(
        "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the arrays as .npz."
    ),
)  # fmt: skip


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the function receives them as ``source``."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {each.name: kwargs.pop(each.name) for each in fields(SourceOptions)}
        return function(*args, source=SourceOptions(**values), **kwargs)

    return add_options(call, _OPTIONS)


def run_source_file(
    file: Path,
    how: SourceOptions,
    *,
    arch: str | None,
    compile_options: Sequence[str],
    races: bool,
    race_warnings: bool,
    schedule: str,
    timeout_s: float,
) -> Document:
    """Run a kernel of a file, and return what to show. Raises InputError."""
    from pytest_nvfp4.device.source import ArgumentError, SourceError, run_source
    from pytest_nvfp4.device.source.described import described

    if how.grid is None or how.block is None:
        raise InputError(f"{file}: give --grid and --block: one launch of a kernel is simulated, without host code")
    try:
        arrays: Any = [described(text, seed=len(how.arguments) + at) for at, text in enumerate(how.arrays)]
        expected = dict(_expected(text) for text in how.expected)
        with output.working(f"running {file}"):
            done = run_source(
                file,
                kernel=how.kernel_name,
                grid=_sizes("--grid", how.grid),
                block=_sizes("--block", how.block),
                cluster=_sizes("--cluster", how.cluster or "1"),
                smem=how.smem or 0,
                args=[described(text, seed=at) for at, text in enumerate(how.arguments)],
                arrays=arrays,
                arch=arch,
                options=[*_compiler_options(how), *compile_options],
                cooperative=how.cooperative,
                races=races,
                race_warnings=race_warnings,
                schedule=schedule,
                deadline_s=timeout_s,
            )
    except (ArgumentError, SourceError) as error:
        raise InputError(str(error)) from error
    if done.entries:
        raise InputError(done.findings[0].message)
    wrong = list(_differences(done, expected, how.tolerance)) if done.arrays else []
    if how.out is not None and done.arrays:
        _write(how.out, done)
    return _document(file, done, wrong, kernel=how.kernel_name)


def _compiler_options(how: SourceOptions) -> list[str]:
    options = [f"-D{name}" for name in how.defines] + [f"-I{folder.resolve()}" for folder in how.includes]
    return [*options, *([f"--std={how.standard}"] if how.standard else [])]


def _sizes(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: write it as X, X,Y or X,Y,Z") from None


def _expected(text: str) -> tuple[str, NDArray[Any]]:
    import numpy as np

    name, equals, file = text.partition("=")
    if not equals:
        raise InputError(f"--expect {text!r}: write it as NAME=FILE.npy")
    try:
        return name, np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--expect {text!r}: {file} cannot be read: {error}") from None


def _differences(done: SourceResult, expected: dict[str, NDArray[Any]], tolerance: float | None) -> Iterator[str]:
    """Yield one text for each array that differs from what is expected."""
    import numpy as np

    for name, want in expected.items():
        got = done.arrays.get(name)
        if got is None:
            raise InputError(f"--expect {name}: the arrays are {', '.join(done.arrays)}")
        if got.shape != want.shape:
            yield f"{name} has shape {list(got.shape)}, expected {list(want.shape)}"
            continue
        values = _values(got, done.elements[name], want)
        if tolerance is None:
            wrong = values != want
            if values.dtype.kind == "f" and want.dtype.kind == "f":
                wrong &= ~(np.isnan(values) & np.isnan(want))
        else:
            left, right = values.astype(np.float64), want.astype(np.float64)
            wrong = ~(np.abs(left - right) <= tolerance + tolerance * np.abs(right)) & (left != right)
        if count := int(np.count_nonzero(wrong)):
            at = tuple(int(index) for index in np.argwhere(wrong)[0])
            first = f"{name}[{', '.join(map(str, at))}] is {values[at]!s}, expected {want[at]!s}"
            yield f"{name}: {count} of {wrong.size} elements differ, the first {first}"


def _values(got: NDArray[Any], element: str, want: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array of bfloat16 if the expected ones are numbers."""
    import numpy as np

    if element == "bf16" and want.dtype.kind == "f":
        return (got.astype(np.uint32) << 16).view(np.float32)
    return got


def _write(out: Path, done: SourceResult) -> None:
    import io

    import numpy as np

    data = io.BytesIO()
    np.savez(data, **done.arrays)  # type: ignore[arg-type]
    output.write_file(out, data.getvalue())


def _document(file: Path, done: SourceResult, wrong: Sequence[str], *, kernel: str | None) -> Document:
    from pytest_nvfp4.cli.cost import launch_sections
    from pytest_nvfp4.driver.kernel_names import short_kernel

    passed = done.status == "passed" and not wrong
    status = "failed" if done.status == "passed" and wrong else done.status
    blocks: list[Block] = [str(finding) for finding in done.findings[:_MOST_FINDINGS]]
    if len(done.findings) > _MOST_FINDINGS:
        blocks.append(f"and {len(done.findings) - _MOST_FINDINGS} more findings")
    blocks += [Styled(text, "bad") for text in wrong]
    for title, text in (("the kernel printed", done.printed), ("the compiler wrote", done.log)):
        if text.strip():
            blocks.append(Section(f"{title}:", [text.rstrip("\n")]))
    if done.arrays:
        blocks.append(Section("arrays:", [Facts([(name, _shown(done, name)) for name in done.arrays])]))
    names = [kernel or short_kernel(launch.kernel) for launch in done.launches]
    blocks += launch_sections(done.launches, done.sms, names=names)
    simulated = f", simulated on a model of {done.model}" if done.model else ""
    data = {
        "kernel": str(file),
        "status": status,
        "model": done.model,
        "findings": [finding.to_dict() for finding in done.findings],
        "differences": list(wrong),
        "printed": done.printed,
        "log": done.log,
        "arrays": {
            name: {"shape": list(array.shape), "element": done.elements[name]} for name, array in done.arrays.items()
        },
        "launches": [launch.model_dump(mode="json") for launch in done.launches],
    }
    heading = Styled(f"{file}: {status}{simulated}", "good" if passed else "bad")
    return Document(str(file), [Section(heading, blocks)], data, passed)


def _shown(done: SourceResult, name: str) -> str:
    array = done.arrays[name]
    first = " ".join(str(value) for value in array.reshape(-1)[:_MOST_SHOWN])
    more = " ..." if array.size > _MOST_SHOWN else ""
    return f"{done.elements[name]}{list(array.shape)}: {first}{more}"
