"""Start a worker sooner: what torch and the DSL make when they are imported is there to stay.

Looking through it for garbage again and again is a fifth of the time of those imports (1.25 s of CPU instead of 1.55 s,
measured), and is repeated in every compile.
"""

from __future__ import annotations

import gc


def begin_imports() -> None:
    """Collect no garbage until :func:`end_imports`."""
    gc.disable()


def end_imports() -> None:
    """Collect garbage as ever, except of what there is now. To be called before the kernel's first line."""
    gc.freeze()
    gc.enable()
