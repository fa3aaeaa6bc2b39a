"""Start a module of this package in any interpreter without adding its parent folder to the path.

Usage: ``python bootstrap.py FOLDER MODULE [ARGUMENT ...]``, where FOLDER is the folder of the package. Another
environment (another version of the DSL) must not see the packages installed beside this one.
"""

import importlib.util
import runpy
import sys
from pathlib import Path


def load(folder: str) -> None:
    """Import the package from its folder."""
    name = Path(folder).name
    spec = importlib.util.spec_from_file_location(
        name, Path(folder) / "__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"no package in {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)


def main() -> None:
    """Import the package from its folder and run one of its modules as ``__main__``."""
    folder, module, *arguments = sys.argv[1:]
    load(folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
