"""Timeouts of every wait for Modal, in seconds. Read when a wait begins, so that tests can change them."""

from __future__ import annotations

QUIET_S = 15.0
"""Silence of the server after which it is asked for a sign of life."""
SIGN_S = 10.0
"""Response to one such request; it is then repeated."""
SILENT_S = 45.0
"""Time since the last answer to any request after which the server, or the connection to it, is given up."""
OUTAGE_S = 30.0
"""Retries of a request for a result while the server reports a problem."""
POLL_S = 20.0
"""One request for a result; it is then repeated, so that a deleted result is noticed."""
ATTACHED_S = 5.0
"""One request for the result of another session's call; its app may have ended meanwhile."""
CONNECT_S = 15.0
CANCEL_S = 5.0
SENT_S = 2.0
"""Arrival of a call that is being sent, before it is cancelled by its name."""
ENDS_S = 2.0
"""End of a program's stream behind the end of its call. The client reports one that is cancelled meanwhile."""
STOP_S = 10.0
STATUS_S = 8.0
PROGRAM_S = 60.0
"""End of a program after its deadline, which the container enforces."""
