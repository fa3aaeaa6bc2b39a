"""``compile``: the kernel compiles without a device, and its host code runs up to the launch."""

from __future__ import annotations

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.plugin.checks.base import Check, CheckItem
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.text import plural
from pytest_nvfp4.toolchain.source import REFUSED_WORD, refused_line


class CompileCheck(Check):
    """The check that a kernel compiles. A failure names the kernel's own line, and a debug bundle holds the rest."""

    name = "compile"
    help = "the kernel compiles without a device, and its host code runs up to the launch"
    stage = 10
    compile_errors_reported_by = None

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if the kernel does not compile; warn of what the compiler warned of.

        A defect that fails alike on several problems (an import, a type) fails once: the first item of this run
        reports it, and the others are skipped and refer to it.
        """
        try:
            trace = nvfp4_case.compiled()
        except CheckFailure as failure:
            for item in nvfp4_case.item.siblings(self.name):
                if item is nvfp4_case.item:
                    break
                other = KernelUnderTest(item).compile_failure()
                if other is not None and other.identity == failure.identity:
                    nvfp4_case.refer_to(item, "it fails in the same way")
            raise
        from pytest_nvfp4.toolchain.sheet import own_code

        for code in own_code(trace):
            registers = "unknown registers" if code.registers is None else plural(code.registers, "register")
            nvfp4_case.establish(
                f"{code.source_name or code.symbol} compiles for {trace.arch}: {registers} a thread, "
                f"{plural(sum(code.ptx_mix.values()), 'PTX instruction')}"
            )
        if nvfp4_case.run.options.json is not None:
            from pytest_nvfp4.toolchain.same_code import code_sha256

            nvfp4_case.value("code_sha256", code_sha256(trace))
        nvfp4_case.warn_of_trace(trace)
        _warn_of_refusal(nvfp4_case)


def _warn_of_refusal(kernel: KernelUnderTest) -> None:
    """Warn, once a file, of a word for which GPU MODE's submission path rejects a kernel under its contract."""
    items = [
        item
        for item in kernel.item.session.items
        if isinstance(item, CheckItem) and item.parent is kernel.item.parent and item.check is kernel.item.check
    ]
    settings = kernel.case.settings
    if items[0] is not kernel.item or settings.entry is not None or settings.on_side_stream:
        return
    if (refused := refused_line(kernel.case.path)) is None:
        return
    number, text = refused
    message = (
        f'GPU MODE\'s submission path rejects this file, because its text contains "{REFUSED_WORD}" (in any case, '
        "comments and strings included), which it takes for work on another stream. Its checks call on the default "
        "stream, so a launch that names none is right there. A kernel for other callers has the setting "
        "side-stream = true"
    )
    kernel.warn_of(
        Finding("submission", message, severity="warning", file=str(kernel.case.path), line=number, text=text.strip())
    )
