"""A turn's name through all hops: who lets it in first makes it, and says it to the next in a header.

A name that comes with a request may be forged. It is 128 random bits where a gate made it, so nobody meets another
turn's by guessing. Whoever picks one for a turn of a program has named that program, and would have been told that
turn's name anyway: as a proof of parenthood (docs/adr/0036) it is worth no more, and it proves nothing of another
program. A name that is at the gate, or that one of the program's latest turns had, is not taken again, or events of
two turns would be taken for one's. A fleet's Envoy takes the header from clients.
"""

import re
from collections.abc import Iterable

from controlplane.gate.requests import TURN_HEADER

_NAME = TURN_HEADER.encode()
_WELL_FORMED = re.compile(rb"[0-9a-f]{32}")


def told_turn_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The name that came with the request; empty where there is none, or one that no gate would make."""
    told = next((value for name, value in headers if name.lower() == _NAME), b"")
    return told.decode() if _WELL_FORMED.fullmatch(told) else ""
