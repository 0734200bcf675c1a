"""A turn that one engine prefills and another decodes is one turn, whichever of the two is heard first."""

import pytest
from support.core_driver import Driver, Publisher, recounted, sums

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.handoffs import _MOST
from controlplane.core.model import events as ev


class Apart(Driver):
    """A prefill engine, and one that decodes; what ends together is applied as the daemon does it."""

    def __init__(self, *, decoder: bool = True) -> None:
        super().__init__()
        self.ended: list[ev.TurnEnded] = []
        self.decoder = Publisher("node/engine-2/x")
        self.pool()
        if decoder:
            self.send(self.decoder(ev.PoolSampled, total_blocks=500, free_blocks=400, disaggregation=ev.DECODE))

    def send(self, *events: ev.Event) -> None:
        for event in events:
            super().send(event)
            over = self.ledger.handoffs.take_over()
            self.ended += over
            super().send(*over)

    def prefill(self, name: str = "a") -> None:
        ids = {"program_id": name, "turn_id": f"{name}.1"}
        self.send(self.engine(ev.FirstToken, prefill_ns=1, prompt_tokens=100, cached_tokens=60, **ids))
        told = {"prompt_tokens": 100, "cached_tokens": 60, "service_ns": 5}
        self.send(self.engine(ev.TurnPrefilled, handoff=f"h.{name}", **told, **ids))

    def decode(self, name: str = "a", *, ok: bool = True) -> None:
        told = {"output_tokens": 20, "service_ns": 7, "ok": ok}
        self.send(self.decoder(ev.TurnDecoded, handoff=f"h.{name}", **told))


@pytest.mark.parametrize("order", ["submit prefill decode", "submit decode prefill", "decode submit prefill"])
def test_the_two_ends_make_one_in_any_order(order: str) -> None:
    d = Apart()
    for step in order.split():
        assert not d.ended
        getattr(d, step)("a")
    (whole,) = d.ended
    assert (whole.program_id, whole.turn_id, whole.publisher) == ("a", "a.1", d.engine.name)
    assert (whole.prompt_tokens, whole.cached_tokens, whole.output_tokens) == (100, 60, 20)
    assert (whole.service_ns, whole.ok) == (12, True)
    a = d.program("a")
    assert (a.turn_index, a.open_turns, a.context_tokens, a.replica) == (1, 0, 120, "node/engine")
    assert not (d.ledger.turns.running or d.ledger.handoffs.prefilled or d.ledger.handoffs.decoded)
    assert (d.counts.contradictions, d.counts.gaps) == (0, 0)


def test_while_it_is_decoded_it_runs_whatever_its_prefill_engine_holds() -> None:
    d = Apart()
    d.submit("a")
    d.prefill("a")
    d.send(d.engine(ev.PublisherState, role="engine"))
    assert d.program("a").open_turns == 1
    kept = Ledger(snapshot=d.ledger.records())
    assert kept.records() == d.ledger.records()
    assert sums(d.ledger) == sums(recounted(d.ledger))
    d.decode("a", ok=False)
    assert [whole.ok for whole in d.ended] == [False]
    assert d.program("a").open_turns == 0


def test_a_decode_that_nobody_tells_of_ends_after_a_while_or_with_its_engines() -> None:
    alone = Apart(decoder=False)
    alone.submit("a")
    alone.prefill("a")
    assert [whole.output_tokens for whole in alone.ended] == [0], "nobody would tell"
    d = Apart()
    for name in ("a", "b"):
        d.submit(name)
        d.prefill(name)
        d.wait(400)
    d.pool()
    assert [whole.program_id for whole in d.ended] == ["a"]
    d.ledger.publisher_states.engines.handle_loss("node/engine-2")
    d.pool()
    assert [whole.program_id for whole in d.ended] == ["a", "b"]
    assert not d.ledger.turns.running


def test_of_two_turns_by_one_name_both_end() -> None:
    d = Apart()
    for name in ("a", "b"):
        d.submit(name)
        ids = {"program_id": name, "turn_id": f"{name}.1"}
        d.send(d.engine(ev.TurnPrefilled, handoff="h.a", prompt_tokens=100, cached_tokens=0, service_ns=5, **ids))
    d.decode("a")
    assert [(whole.program_id, whole.output_tokens) for whole in d.ended] == [("a", 0), ("b", 20)]
    assert not (d.ledger.turns.running or d.ledger.handoffs.prefilled)


def test_a_decode_engine_is_counted_and_no_room_of_its_is_given_out() -> None:
    d = Apart()
    d.tick()
    assert (d.controller.pressure.kv_total_blocks, list(d.ledger.engines.pools)) == (1000, ["node/engine"])
    d.send(d.decoder(ev.PoolSampled, total_blocks=500, free_blocks=0, retractions=3, disaggregation=ev.DECODE))
    assert d.ledger.turns.signals.retractions == 3
    assert d.decoder.name in d.ledger.publisher_states.publishers_in_use()


def test_ends_of_turns_that_nobody_prefilled_are_bounded() -> None:
    d = Apart()
    for number in range(_MOST + 3):
        d.decode(f"x{number}")
    assert len(d.ledger.handoffs.decoded) == _MOST


def test_a_gate_before_a_router_stands_before_the_prefill_engines_of_its_node() -> None:
    d = Apart()
    prefill = Publisher("node/engine-30000/x")
    d.send(prefill(ev.PoolSampled, total_blocks=5, free_blocks=5, disaggregation=ev.PREFILL))
    assert d.ledger.engines.behind("node/gate-8000") == ("node/engine-30000",)
    assert d.ledger.engines.behind("other/gate-8000") == ()
