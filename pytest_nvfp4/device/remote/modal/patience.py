"""How many seconds each wait for Modal may take; looked up when a wait begins."""

from __future__ import annotations

QUIET_S = 15.0
"""Without word from the server, it is asked for a sign of life."""
SIGN_S = 10.0
"""It may take to give one; a connection that broke is tried again as long."""
OUTAGE_S = 30.0
"""Results are asked for again and again while the server only says that it has a problem."""
POLL_S = 20.0
"""A request for a result waits for it; then it is asked for anew, and a result that is gone is noticed."""
CONNECT_S = 15.0
CANCEL_S = 5.0
SENT_S = 2.0
"""What is just being sent may take to arrive, before it is cancelled by its name."""
STOP_S = 10.0
STATUS_S = 8.0
PROGRAM_S = 60.0
"""The end of a program may come so much later than its deadline; the container keeps the deadline itself."""
