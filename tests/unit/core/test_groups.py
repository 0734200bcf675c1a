"""Rollouts of one prompt: one prefill, one engine, a pin until the last has begun, and a batch's end."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import of
from test_replicas import Pair

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier

PROMPT = 300


class Rollouts(Pair):
    """A trainer that names groups, before two engines of 10,000 blocks."""

    def __init__(self, name: str = "penstock", **sample: Any) -> None:
        super().__init__(name, total=10_000, **sample)
        self.places: dict[str, str] = {}

    def come(self, *names: str, size: int = 4, group: str = "g") -> None:
        for name in names:
            ids = {"program_id": name, "turn_id": f"{name}.1", "group_id": group, "group_size": size}
            self.send(self.gate(ev.TurnQueued, prompt_tokens=PROMPT, **ids))

    def entered(self, after_s: float = 0.0) -> list[str]:
        """Whom a tick lets in, each submitted where it was placed."""
        commands = self.tick(after_s)
        self.places |= {each.program_id: each.replica for each in of(cmd.Place, commands)}
        names = [each.program_id for each in of(cmd.Admit, commands)]
        for name in names:
            self.on(int(self.places[name][-1])).submit(name, blocks=PROMPT)
        return names

    def first_token(self, name: str, cached: int = 0) -> None:
        self.on(int(self.places[name][-1]))
        token = {"prompt_tokens": PROMPT, "cached_tokens": cached, "prefill_ns": 1_000_000}
        self.send(self.engine(ev.FirstToken, program_id=name, turn_id=f"{name}.1", **token))

    def end_turn(self, name: str, *, ok: bool = True) -> None:
        self.on(int(self.places[name][-1]))
        ended = {"prompt_tokens": PROMPT, "output_tokens": 50, "tool_calls": 1, "ok": ok}
        self.send(self.engine(ev.TurnEnded, program_id=name, turn_id=f"{name}.1", **ended))


def test_one_member_computes_the_prompt_and_the_others_follow_it_to_its_engine() -> None:
    d = Rollouts()
    d.come("a", "b", "c", "d")
    assert d.entered() == ["a"]
    assert d.entered(1) == []
    assert d.controller.holds.now("b").text == "its group's prompt is computed first"
    d.first_token("a")
    assert d.controller.next_deadline_ns() == 0, "they do not wait for the interval's end"
    assert d.entered() == ["b", "c", "d"]
    assert len(set(d.places.values())) == 1
    d.first_token("b", cached=PROMPT)
    assert d.ledger.estimates.shared_blocks == 0, "what siblings share is not what all programs share"


def test_a_preset_that_knows_no_groups_lets_them_in_as_they_come() -> None:
    d = Rollouts("fcfs")
    d.come("a", "b", "c", "d")
    assert d.entered() == ["a", "b", "c", "d"]
    assert len(set(d.places.values())) == 2


def pinned_for_a_third(d: Rollouts) -> cmd.Retain:
    """Two of three have had a turn; the pin of the context that keeps their prompt."""
    d.come("a", "b", size=3)
    d.entered()
    d.first_token("a")
    d.entered()
    for name in "ab":
        d.end_turn(name)
    (pin,) = of(cmd.Retain, d.tick())
    assert isinstance(pin, cmd.Retain)
    return pin


def test_the_prompt_stays_pinned_until_the_last_has_begun() -> None:
    d = Rollouts()
    pin = pinned_for_a_third(d)
    assert pin.program_id in ("a", "b")
    assert of(cmd.Retain, d.tick(1)) == [], "it is said once"
    d.come("c", size=3)
    assert d.entered() == ["c"]
    assert len(set(d.places.values())) == 1
    d.first_token("c", cached=PROMPT)
    assert [each.program_id for each in of(cmd.Release, d.tick())] == [pin.program_id]


def test_new_weights_end_every_context_and_no_program() -> None:
    d = Rollouts()
    pin = pinned_for_a_third(d)
    d.send(d.gate(ev.CacheFlushed))
    assert [each.program_id for each in of(cmd.Release, d.tick())] == [pin.program_id]
    assert {d.program(name).kv_tier for name in "ab"} == {Tier.NONE}
    assert d.controller.pressure.programs_active == 2
    d.come("c", "d", size=3)
    assert d.entered() == ["c"], "the prompt is gone: one computes it anew"
    d.on(int(d.places["a"][-1])).submit("a", "a.2", blocks=PROMPT)
    again = {"prompt_tokens": PROMPT + 60, "prefill_ns": 2_000_000, "launch_delay_ns": 10}
    d.send(d.engine(ev.FirstToken, program_id="a", turn_id="a.2", **again))
    assert d.ledger.turns.signals.cold_returns == 0, "no want of room has done that"


@given(
    size=st.integers(2, 6),
    waves=st.lists(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4), min_size=1, max_size=4),
    fates=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["silent", "fails", "leaves", "ends"])),
    flush=st.integers(0, 4),
)
def test_whatever_becomes_of_members_nobody_waits_for_ever_and_no_pin_stays(
    size: int, waves: list[list[str]], fates: dict[str, str], flush: int
) -> None:
    """A first token that nobody tells, a turn that fails or never runs, a member that never comes."""
    d, came, entered = Rollouts(), set[str](), set[str]()
    for number, wave in enumerate(waves):
        came |= set(wave)
        d.come(*(name for name in wave if name not in entered), size=size)
        for name in d.entered(1):
            entered.add(name)
            match fates.get(name):
                case None | "ends":
                    d.first_token(name)
                    d.end_turn(name)
                case "fails":
                    d.end_turn(name, ok=False)
                case "leaves":
                    d.send(d.gate(ev.TurnAbandoned, program_id=name, turn_id=f"{name}.1"))
            if fates.get(name) == "ends":
                d.end(name)
        if number == flush:
            d.send(d.gate(ev.CacheFlushed))
    for _ in range(6 * 31):
        entered |= set(d.entered(1))
    assert entered == came
    assert not any(d.program(name).retained_until_ns > d.now_ns for name in d.ledger.programs.by_name)
