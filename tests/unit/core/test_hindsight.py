"""The least that had to be computed again: Belady's choice over the turns of a run."""

from dataclasses import dataclass, field

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.regret import Hindsight


@dataclass
class Run:
    """Turns of half a second, on an engine of so many tokens."""

    pool: int
    hindsight: Hindsight = field(default_factory=Hindsight)
    turns: int = 0

    def __post_init__(self) -> None:
        self.hindsight.event(ev.PoolSampled(publisher="n/engine/1", total_blocks=self.pool, free_blocks=0), 0)

    def turn(self, program: str, at_s: float, prompt: int, cached: int = 0, engine: str = "n/engine/1") -> None:
        self.turns += 1
        told = {"publisher": engine, "program_id": program, "turn_id": f"{self.turns}", "prompt_tokens": prompt}
        self.hindsight.event(ev.FirstToken(cached_tokens=cached, **told), seconds(at_s))
        self.hindsight.event(ev.TurnEnded(cached_tokens=cached, **told), seconds(at_s + 0.5))


def test_what_is_asked_for_last_goes_first() -> None:
    """Of three contexts two fit: the engine kept the wrong one, whose program comes back last."""
    run = Run(pool=200)
    for name, at_s in (("a", 1), ("b", 2), ("c", 3)):
        run.turn(name, at_s, 100)
    for name, at_s, cached in (("a", 4, 0), ("b", 5, 0), ("c", 6, 0)):
        run.turn(name, at_s, 100, cached)
    least = run.hindsight.least()
    assert (least.computed_tokens, least.again_tokens, least.least_tokens) == (600, 300, 100)
    assert least.regret_ratio == 600 / 400


def test_parts_of_a_context_may_go() -> None:
    run = Run(pool=150)
    for at_s in (1, 3):
        run.turn("a", at_s, 100)
        run.turn("b", at_s + 1, 100)
    assert run.hindsight.least().least_tokens == 100  # of a 50, and then of b as much


def test_where_all_fits_nothing_had_to_be_computed_again() -> None:
    run = Run(pool=1000)
    run.turn("a", 1, 100)
    run.turn("a", 2, 150, cached=0)
    least = run.hindsight.least()
    assert (least.again_tokens, least.least_tokens) == (100, 0)
    assert least.regret_ratio == 250 / 150
