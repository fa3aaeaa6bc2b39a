"""The environment of a container: the packages that are installed here, without this repository."""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

_OURS = ("pytest_nvfp4", "pytest-nvfp4", "__editable__", "_pytest_nvfp4", "tests")


def make_site(folder: Path) -> Path:
    """A folder of links to every installed package but ours; what a mount does not bring cannot be imported."""
    target = folder / "site-packages"
    target.mkdir()
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    for place in sorted(places):
        if not Path(place).is_dir():
            continue
        for entry in Path(place).iterdir():
            ours = entry.name.startswith(_OURS) or entry.suffix in (".pth", ".egg-link")
            if not ours and not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry.resolve())
    return target
