"""Ways to forge a trace from the kernel's own file, each with a word of what is reported."""

from __future__ import annotations

_FIND = "import sys\ndef module(name):\n    return sys.modules['pytest' + '_nvfp4.' + name]\n"

FORGERIES = {
    "removes the trace of layouts": ("import sys\nsys.settrace(None)\n", "sys.settrace"),
    "traces by another function": (
        "import contextlib, sys\nwith contextlib.ExitStack() as stack:\n    stack.callback(sys.settrace, None)\n",
        "a trace of every line",
    ),
    "swaps the recorder's code": (
        _FIND + "F = module('toolchain.worker.capture')._type_text\nF.__code__ = F.__code__.replace(co_name='other')\n",
        "_type_text",
    ),
    "removes a stand-in of the DSL": (
        "import cutlass.base_dsl.compiler as compiler\nREAL = compiler.CompileOptions.apply_envar_settings\n"
        "compiler.CompileOptions.apply_envar_settings = lambda *a, **k: REAL(*a, **k)\n",
        "apply_envar_settings",
    ),
    "changes the record of launches": (
        _FIND + "W = module('driver.tensormap')\nW.describe = 1\nW.looks_like_tensormap = lambda chunk: False\n",
        "looks_like_tensormap",
    ),
    "writes beside the compiled files": (
        "import os\nopen(os.path.join(os.environ['CUTE_DSL_DUMP_DIR'], 'forged.ptx'), 'w').write('x')\n",
        "forged.ptx",
    ),
    "writes events": (
        "import json, os, stat\n"
        "for descriptor in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):\n"
        '            os.write(descriptor, b\'{"event": "stage", "name": "mine", "seconds": 1.0}\\n\')\n'
        "    except OSError:\n"
        "        pass\n",
        "wrote to the pipe",
    ),
    "runs code under the DSL's name": (
        "import cutlass.cute\nexec(compile('import sys', cutlass.cute.__file__, 'exec'))\n",
        "under the name of",
    ),
}
"""What a kernel's file does first, and a word of the finding."""
