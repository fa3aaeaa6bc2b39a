"""Accesses in PTX: their widths, their lines, and the tensors that they belong to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pytest_nvfp4.insights.accesses import accesses_in, accesses_of
from pytest_nvfp4.toolchain.trace import Trace, Value

PTX = """.version 9.0
.target sm_100a
.address_size 64
.file 1 "{source}"
.visible .entry kernel()
{{
    .reg .b64 %rd<9>;
    .reg .b32 %r<9>;
    .reg .b16 %rs<3>;
    .loc 1 4 1
    st.global.v4.b64 [%rd1], {{%rd2, %rd3, %rd4, %rd5}};
    .loc 1 5 1
    st.weak.global.u16 [%rd1], %rs1;
    st.weak.global.u16 [%rd1+2], %rs1;
    .loc 1 6 1
    ld.global.nc.v8.b32 {{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, [%rd1];
    cp.async.ca.shared.global [%r1], [%rd1], 8;
    st.shared.v4.b32 [%r1], {{%r1, %r2, %r3, %r4}};
    ret;
}}
"""
SOURCE = """part = thr.partition_D(tensor)
slice_ = part[None, 0]
other = thr.partition_D(tensor_2)
cute.autovec_copy(registers, slice_)
other[0] = value
cute.copy(atom, part_of_nothing, registers)
"""


def trace_of(folder: Path, *, library: str = "") -> Trace:
    """A trace of the module above, with the values that its source binds."""
    source = folder / "kernel.py"
    source.write_text(SOURCE)
    (folder / "0.ptx").write_text(PTX.format(source=source))
    gmem = '!cute.memref<f16, gmem, align<16>, "(8):(1)">'
    values = tuple(
        Value(name=f"kernel.{name}", type=text, file=str(source), line=line)
        for name, text, line in (("part", gmem, 1), ("slice_", gmem, 2), ("other", gmem, 3))
    )
    code = (SimpleNamespace(library=True, symbol=library),) if library else ()
    paths = [folder / "0.ptx", folder / "gone.ptx"]
    return cast(Trace, SimpleNamespace(code=code, values=values, artifact_paths=lambda _: paths))


def _found(accesses: Any) -> set[tuple[str, str, int, int]]:
    return {(one.space, one.direction, one.width, one.location.line) for one in accesses}


def test_widths_and_lines_are_read_from_the_ptx(tmp_path: Path) -> None:
    expected = {
        ("gmem", "store", 32, 4),
        ("gmem", "store", 2, 5),
        ("gmem", "load", 32, 6),
        ("gmem", "load", 8, 6),
        ("smem", "store", 16, 6),
    }
    assert _found(accesses_in(trace_of(tmp_path))) == expected
    assert not accesses_in(trace_of(tmp_path, library="kernel")), "kernels of libraries do not count"


def test_an_access_belongs_to_what_its_statement_names_directly_or_through_a_variable(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    accesses = accesses_in(trace)
    assert _found(accesses_of("kernel.part", accesses, trace.values)) == {("gmem", "store", 32, 4)}
    assert _found(accesses_of("kernel.other", accesses, trace.values)) == {("gmem", "store", 2, 5)}
    assert not accesses_of("kernel.nothing", accesses, trace.values)
    assert not accesses_of("another.part", accesses, trace.values[1:2]), "a variable of another scope is another one"


def test_a_module_that_does_not_parse_has_no_accesses(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    (tmp_path / "0.ptx").write_text(".version")
    assert accesses_in(trace) == []
