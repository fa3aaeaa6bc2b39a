"""Command lines of known agents as workers: templates, which leave the permissions of an agent as they are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Agent:
    """How an agent is started as a worker; it reads the prompt from standard input.

    Attributes:
        command: Program and arguments.
        environment: Variables that it needs.
        note: What a user should know.
    """

    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    note: str = ""

    @property
    def network(self) -> bool:
        """Whether it needs the network: an agent that needs a key calls a service."""
        return bool(self.environment)


AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        ("claude", "-p", "--permission-mode", "acceptEdits"),
        ("ANTHROPIC_API_KEY",),
        "Claude Code edits files of its worktree; --allowedTools names the commands that it may run, such as "
        "Bash(pytest:*) and Bash(nvfp4:*).",
    ),
    "codex": Agent(
        ("codex", "exec", "--sandbox", "workspace-write", "-"),
        ("OPENAI_API_KEY",),
        "Codex has a sandbox of its own inside that of the loop; if it cannot start there, choose one of the two.",
    ),
    "gemini": Agent(
        ("gemini", "--approval-mode", "auto_edit"),
        ("GEMINI_API_KEY",),
        "Gemini CLI edits files; its settings name the commands that it may run.",
    ),
}
"""Known agents by name."""


def agent(text: str) -> Agent:
    """Return a known agent, or any other command line. Raises ValueError: quotes of the command line do not match."""
    if text in AGENTS:
        return AGENTS[text]
    return Agent(tuple(shlex.split(text)))
