"""PTX texts for the tests of the front end."""

from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Kernel

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
REGISTERS = """.reg .pred %p<8>;
.reg .b16 %rs<8>;
.reg .b32 %r<64>;
.reg .b64 %rd<16>;
.reg .f32 %f<8>;
.reg .f64 %fd<4>;
"""


def module_text(body: str, *, before: str = "", parameters: str = ".param .u64 p0", header: str = "") -> str:
    """A module of one kernel ``k`` with the usual registers."""
    return f"{HEAD}{before}\n.visible .entry k({parameters})\n{header}\n{{\n{REGISTERS}{body}\n}}\n"


def kernel(body: str, **parts: str) -> Kernel:
    """The kernel of ``module_text``."""
    return parse(module_text(body, **parts)).kernels["k"]


def line_of(text: str, part: str) -> int:
    """The number, from 1, of the first line that contains ``part``."""
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)
