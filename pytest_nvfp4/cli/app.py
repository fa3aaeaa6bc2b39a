"""The command group, which imports a subcommand only when it is called."""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from pytest_nvfp4 import __version__
from pytest_nvfp4.cli.errors import Exit, as_input_error
from pytest_nvfp4.end_signals import as_interrupts

COMMANDS: dict[str, tuple[str, str]] = {
    "example": ("cli.example", "Write one of the shipped kernels to a file, to try this on."),
    "init": ("cli.init", "Set up a repository: settings, a workflow and a line of .gitignore."),
    "check": ("cli.check", "Run all checks of a kernel, as pytest does."),
    "watch": ("cli.check", "Check a kernel whenever it changes, the cheap checks first."),
    "accept": ("cli.accept", "Let a finding about a kernel pass until a day, with a reason."),
    "layouts": ("cli.layouts", "List every named layout of a kernel."),
    "diff": ("cli.diff", "Compare layouts of two kernels, snapshots or git revisions by meaning."),
    "insights": ("cli.insights", "Relate each layout of a kernel to the hardware, worst first."),
    "tmem": ("cli.tmem.columns", "Count the TMEM columns of a kernel or a tile, and the allocation they need."),
    "tmem-pack": ("cli.tmem.packing", "Pack accumulators and scale factors into TMEM, overlapping where it helps."),
    "epilogue": ("cli.epilogue", "Rank the ways from TMEM to global memory, a kernel's own among them."),
    "prove": ("cli.prove.command", "Prove the CTA map, and that scale factors are where the MMA reads them."),
    "compile": ("cli.codegen", "Compile a kernel without a device, and save its artifacts."),
    "trace": ("cli.trace", "Write the trace of a kernel to a file, which needs no DSL to be read."),
    "ptx": ("cli.codegen", "Write the PTX of a kernel."),
    "sass": ("cli.codegen", "Write the SASS of a kernel."),
    "run": ("cli.run", "Run a kernel once: verdict, findings, printed text, counts and a timeline."),
    "debug": ("cli.debug", "Stop a kernel in the simulator, and look at its registers, memory and barriers."),
    "cost": ("cli.cost", "Count the work of one call of a kernel, or compare two; no time, no GPU."),
    "model": ("cli.model.command", "Model the time of a kernel, or compare two; constants of devices."),
    "history": ("cli.history", "Show counters and modelled times of a kernel by git revision of its snapshots."),
    "regions": ("cli.regions.command", "Time the regions that a kernel names, beside modelled times."),
    "profile": ("cli.profile.command", "Profile a kernel on a GPU; show or compare saved reports of profilers."),
    "loop": ("cli.loop.command", "Optimise a kernel unattended: workers propose, the harness judges, git keeps."),
    "eval": ("cli.evaluate", "Check and time a kernel as GPU MODE does, with the same protocol."),
    "bench": ("cli.bench", "Time the kernels of a suite on a GPU, as the check `benchmark` does."),
    "upgrade": ("cli.upgrade", "Compare a kernel between two versions of CuTe DSL."),
    "exec": ("cli.execute", "Run a Python program on a GPU, in the simulator, or on a remote."),
    "remote": ("cli.remote", "Show the status or cost of a remote, start it or stop it."),
    "snapshot": ("cli.snapshot", "Show or check snapshot files."),
    "cache": ("cli.cache", "Show or clear cached traces and results."),
    "doctor": ("cli.doctor.command", "Examine this machine, and name the commands that install what is missing."),
    "guide": ("cli.guide", "Show a page of the documentation."),
    "completion": ("cli.completion", "Write the script that completes commands and options in a shell."),
    "schema": ("cli.schema", "Write the JSON Schema of a document that programs write or read."),
    "skills": ("cli.skills.command", "Install skills for agents into a repository, list or check them."),
    "mcp": ("cli.mcp.command", "Serve checks and the simulator to agents (Model Context Protocol)."),
    "bench-self": ("selfcheck.speed.command", "Measure the speed of this tool on this machine."),
}
"""Name -> module below ``pytest_nvfp4`` and one line of help, so that ``nvfp4 --help`` imports none of them."""


FIRST = ("check", "watch", "run", "model", "loop")
"""The commands that `nvfp4` shows by itself."""


EXIT_CODES = (
    "Exit codes: 0 success; 1 a check failed (layouts differ, a kernel does not compile, something required is "
    "missing); 2 wrong usage or an input that cannot be read; 130 interrupted."
)


class ReaderLeftError(Exception):
    """The reader of standard output closed it (``nvfp4 ptx KERNEL | head``).

    A separate exception, because click exits with status 1 on a broken pipe, as for a failure.
    """


class LazyGroup(click.Group):
    """Subcommands by name from a table; the module's function is called ``NAME_command``."""

    table: ClassVar[dict[str, tuple[str, str]]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        del ctx
        if cmd_name not in self.table:
            return None
        module = import_module(f"pytest_nvfp4.{self.table[cmd_name][0]}")
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        own = command.commands.values() if isinstance(command, click.Group) else ()
        for each in (command, *own):
            if "xit code" not in (each.help or ""):
                each.epilog = EXIT_CODES
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand; an unknown name raises an error that suggests a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.table, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; commands are {', '.join(self.table)}"
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the subcommands and options that begin with a text, without importing subcommands."""
        if incomplete[:1] == "-":
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=text) for name, (_, text) in self.table.items() if name.startswith(incomplete)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, and report an error that the user's input causes on one line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeftError from error
        except Exception as error:
            known = as_input_error(error)
            if known is None:
                raise
            raise known from error


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="nvfp4")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Inspect and test NVFP4 kernels for NVIDIA Blackwell (CuTe DSL) on a machine without a GPU.

    KERNEL is a Python file under GPU MODE's contract, or one with an entry in [tool.pytest_nvfp4]. It runs in a
    separate process. Results go to standard output, everything else to standard error.
    """
    if ctx.invoked_subcommand is None:
        width = max(map(len, FIRST))
        lines = [f"  nvfp4 {name:{width}} KERNEL  {COMMANDS[name][1]}" for name in FIRST if name != "loop"]
        lines.append(f"  nvfp4 {'loop':{width}} run     {COMMANDS['loop'][1]}")
        rest = (
            "No kernel yet? `nvfp4 example` writes one, and `nvfp4 init` sets up a repository.\n"
            f"`nvfp4 --help` lists all {len(COMMANDS)} commands, `nvfp4 guide start` explains the first steps."
        )
        click.echo("\n".join(["Test NVFP4 kernels on a machine without a GPU:", *lines, rest]))


def run() -> None:
    """Run the command line, and exit with its code."""
    as_interrupts()
    try:
        code = app.main(prog_name="nvfp4", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("nvfp4: interrupted", err=True)
        code = Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (ReaderLeftError, BrokenPipeError):
        # Python flushes standard output at exit, which would raise again: send what is left to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.FINE
    sys.exit(code if isinstance(code, int) else Exit.FINE)
