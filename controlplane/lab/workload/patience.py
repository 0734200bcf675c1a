"""How long a client of the laboratory waits, live and simulated."""

GIVE_UP_S = 900.0
"""After so long of refusals it gives a turn up."""

LONGEST_WAIT_S = 60.0
"""So long it waits at most before it tries again, whatever it is told."""
