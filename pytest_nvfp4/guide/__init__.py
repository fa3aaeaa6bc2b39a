"""The documentation, one Markdown page a topic; `nvfp4 guide` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

TOPICS = (
    "start",
    "checks",
    "layouts",
    "simulator",
    "debug",
    "cuda",
    "triton",
    "races",
    "cost",
    "model",
    "regions",
    "benchmark",
    "profile",
    "bottlenecks",
    "loop",
    "remotes",
    "proofs",
    "ci",
    "agents",
    "settings",
    "contracts",
    "sandbox",
    "formats",
    "evidence",
    "reported",
    "mutants",
    "architecture",
    "changes",
)
"""Topics in reading order."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the guide.

    Attributes:
        topic: Name of its file without the suffix.
        text: Its Markdown.
    """

    topic: str
    text: str

    @property
    def title(self) -> str:
        """Text of the first heading."""
        return self.text.partition("\n")[0].removeprefix("# ")


def page(topic: str) -> Page:
    """Return the page of a topic. Raises KeyError for a topic that does not exist."""
    if topic not in TOPICS:
        raise KeyError(topic)
    return Page(topic, resources.files(__name__).joinpath(f"{topic}.md").read_text(encoding="utf-8"))
