"""What each preset does to programs, contexts and turns, in words; a test sees each of them at work."""

from enum import StrEnum


class Mechanism(StrEnum):
    """One way in which a preset departs from the stock engine."""

    HOLD = "holds turns at the gate"
    LIMIT = "moves the limit of active programs"
    PACK = "lets in who waits by another order than arrival"
    PAUSE = "takes slots back, and gives them again"
    PIN = "pins contexts"
    SWAP = "moves contexts to host memory"
    DISCARD = "discards contexts"
    LABEL = "labels programs for the engine"
    ORDER = "orders the engine's queue"
    EVICT = "evicts by another order than last use"
    SHRINK = "begins with smaller chunks where room is short"


_M = Mechanism
_MARS = (_M.HOLD, _M.LIMIT, _M.PACK, _M.PIN, _M.ORDER, _M.EVICT, _M.SHRINK)
MECHANISMS: dict[str, tuple[Mechanism, ...]] = {
    "fcfs": (),
    "autellix": (_M.ORDER,),
    "infercept": (_M.PIN, _M.SWAP, _M.DISCARD, _M.ORDER),
    "continuum": (_M.PIN, _M.ORDER),
    "thunderagent": (_M.HOLD, _M.LIMIT, _M.PACK, _M.PAUSE),
    "mori": (_M.HOLD, _M.LIMIT, _M.PACK, _M.PAUSE, _M.SWAP, _M.DISCARD, _M.LABEL, _M.ORDER, _M.EVICT),
    "concur": (_M.HOLD, _M.LIMIT, _M.PAUSE),
    "mars": (*_MARS, _M.PAUSE),
    "penstock": (_M.HOLD, _M.LIMIT, _M.PACK, _M.PAUSE, _M.EVICT, _M.SHRINK),
    "mars-paper": _MARS,
}
"""By preset, with its own parameters; with others it may do less."""
