"""Names that an earlier version took in as they came are made good when its snapshot is read."""

import pytest
from support import strangers
from support.core_driver import Driver

from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import PRESETS
from controlplane.core.text import made_good
from controlplane.shell import snapshot
from controlplane.wire.codec import decode_events, encode_events

PRESET = PRESETS["penstock"]
TAKEN = {case: name for case, name in strangers.NAMES.items() if case != "half a pair" and len(name) <= 256}


@pytest.mark.parametrize("name", TAKEN.values(), ids=TAKEN)
def test_a_call_of_any_name_goes_on_after_a_restart(name: str) -> None:
    d = Driver(PRESET)
    d.ask(name)
    d.send(d.tools(ev.ToolEnqueued, program_id=name, call_id=name, tool=name, wants_slot=True))
    taken = b"".join(
        snapshot.pieces(
            d.controller.state, preset="x", stream_sequence=1, stream_created="x", now_ns=d.now_ns, time_scale=1.0
        )
    )
    d.controller = Controller(PRESET, None, snapshot.restore(snapshot.read(taken), PRESET))
    assert d.ledger.programs.by_name.keys() == {made_good(name)}
    assert [*d.ledger.programs.queue] == [made_good(name)]
    ended = ev.ToolEnded(program_id=name, call_id=name, tool=name, duration_ns=1)
    d.send(*decode_events(encode_events(d.tools.name, 2, [(1, ended)])).events)
    assert not d.ledger.tools.calls
