"""Headers of C and C++ that NVRTC has not, in terms of ``cuda/std`` (the wheels' libcu++), for source written for nvcc.

What NVRTC declares itself (``printf``, ``assert``, the functions of ``math.h``) needs an empty header only.
"""

from __future__ import annotations

from typing import Final

_STD: Final = "namespace std { using namespace ::cuda::std; }\n"
_TYPES: Final = (
    *(f"{sign}int{kind}{bits}_t" for sign in ("", "u") for kind in ("", "_least", "_fast") for bits in (8, 16, 32, 64)),
    *("intptr_t", "uintptr_t", "intmax_t", "uintmax_t"),
)
_FORWARDED: Final = (
    *("algorithm", "array", "atomic", "bit", "bitset", "cfloat", "chrono", "climits", "cmath", "complex", "concepts"),
    *("cstdint", "cstddef", "cstdlib", "cstring", "functional", "initializer_list", "iterator", "limits", "memory"),
    *("numeric", "optional", "ratio", "span", "tuple", "type_traits", "utility", "variant"),
)
_OFFSET: Final = """#undef offsetof
#define offsetof(type, member) ((::size_t) __INTADDR__(&((type *) 0)->member))
"""
"""libcu++ defines it as a difference of pointers, which NVRTC accepts in no constant expression."""
_OF_C: Final = {
    "stdint.h": "#include <cuda/std/cstdint>\n" + "".join(f"using ::cuda::std::{name};\n" for name in _TYPES),
    "stddef.h": "#include <cuda/std/cstddef>\nusing ::cuda::std::size_t;\nusing ::cuda::std::ptrdiff_t;\n" + _OFFSET,
    "limits.h": "#include <cuda/std/climits>\n",
    "float.h": "#include <cuda/std/cfloat>\n",
    **dict.fromkeys(("assert.h", "math.h", "stdio.h", "stdlib.h", "string.h", "stdbool.h", "inttypes.h"), ""),
}
_EMPTY: Final = ("cstdio", "cassert", "iostream", "vector", "string", "cinttypes")


def standard_headers() -> dict[str, str]:
    """Return the text of each header by name."""
    made = {name: f"#pragma once\n{text}" for name, text in _OF_C.items()}
    made["inttypes.h"] += "#include <stdint.h>\n"
    for name in _FORWARDED:
        of_c = {"cstdint": "#include <stdint.h>\n", "cstddef": "#include <stddef.h>\n"}.get(name, "")
        made[name] = f"#pragma once\n#include <cuda/std/{name}>\n{of_c}{_STD}"
    made |= dict.fromkeys(_EMPTY, "#pragma once\n")
    return made
