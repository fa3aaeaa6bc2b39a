"""Generates code as text, compiles it and runs it."""

from honest_gemm import compute

SPACE = {"compute": compute}
exec(compile("def made(data):\n    return compute(data)\n", "<my template>", "exec"), SPACE)


def custom_kernel(data):
    return SPACE["made"](data)
