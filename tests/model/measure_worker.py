"""Fills in tables of small points in the simulator, with a clock that only calls: ``... FOLDER TABLE ...``.

It shows that ``measure_hopper`` can run unattended; the times mean nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_90a"))
    from pytest_nvfp4.device.worker.clock import Round
    from pytest_nvfp4.device.worker.simulator import simulate
    from tests.model.measure_hopper import measure

    class CallingClock:
        """Takes 1 us without a launch and 3.5 us with one; the first round is late."""

        def __init__(self, launches: list[Any]) -> None:
            self.launches = launches
            self.rounds = 0

        def device_round(self, call: Callable[[], Any], *, cold: bool, expected_call_us: float) -> Round:
            assert cold
            assert expected_call_us >= 0
            before = len(self.launches)
            call()
            self.rounds += 1
            return Round(3.5 if len(self.launches) > before else 1.0, late=self.rounds == 1)

    with simulate(arch="sm_90a") as session:
        for name in sys.argv[2:]:
            measure(folder / name, CallingClock(session.launches), rounds=2)
        if session.findings:
            raise SystemExit("\n".join(map(str, session.findings)))


if __name__ == "__main__":
    main()
