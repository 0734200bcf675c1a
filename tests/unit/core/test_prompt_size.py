"""Estimates of prompts: exact where something is known, learned where engines count, and nobody spoils them."""

from random import Random

import pytest
from support.core_driver import Driver

from controlplane.core.estimators.prompt_size import MEDIA, PromptSize, PromptSizes, sender_of
from controlplane.core.model import events as ev


def size(text: int = 0, **more: object) -> PromptSize:
    return PromptSize(prompt_bytes=text, model="m", agent="a", **more)  # type: ignore[arg-type]


def taught(programs: int = 20, rate: float = 0.3, template: float = 200.0) -> PromptSizes:
    """Programs of text, each with a first prompt and two that go on."""
    sizes, random = PromptSizes(), Random(1)
    for number in range(programs):
        name, known = f"text-{number}", 0
        for turn in range(3):
            new = random.randint(100, 1000) if number % 4 == 0 and not turn else random.randint(3000, 30_000)
            counted = known + round(new * rate) + (round(template) if not turn else 0)
            more = {"continues": f"{turn}", "shared_ratio": 1.0, "new_bytes": new} if turn else {}
            sizes.learn(size(new, **more), name, counted, known)
            known = counted
    return sizes


def error(sizes: PromptSizes, text: int = 20_000, rate: float = 0.3, template: float = 200.0) -> float:
    true = text * rate + template
    return abs(sizes.estimate(size(text), "somebody new").tokens / true - 1)


def test_what_continues_is_known_and_what_is_left_out_of_it_is_not_counted() -> None:
    sizes = PromptSizes()
    goes_on = size(44_000, continues="t", shared_ratio=1.0, new_bytes=4000)
    assert sizes.estimate(goes_on, "x", known_tokens=10_000).tokens == 11_000
    compacted = size(9000, continues="t", shared_ratio=0.1, new_bytes=5000)
    assert sizes.estimate(compacted, "x", known_tokens=10_000).tokens == 1000 + 1250
    forgotten = sizes.estimate(goes_on, "x", known_tokens=0)
    assert forgotten.tokens == pytest.approx(11_000, rel=0.01), "once, by its bytes"


def test_a_guess_says_so_until_somebody_has_taught_it() -> None:
    assert PromptSizes().estimate(size(4000, audio_tokens=9), "x").guessed == ("text", "audio")
    assert taught().estimate(size(4000, audio_tokens=9), "x").guessed == ("audio",)
    assert error(taught()) < 0.02


def spoil(what: str) -> list[tuple[PromptSize, str, int]]:
    """A client's day: what it sends, by whom, and what the engine counts."""
    if what == "health checks":
        return [(size(20), sender_of(f"anonymous-{number}"), 9) for number in range(2000)]
    if what == "a health check by one name":
        return [(size(20), "check", 9)] * 2000
    if what == "text of another kind":
        return [(size(40_000), "base64", 30_000)] * 2000
    if what == "nonsense":
        return [(size(4000), "nonsense", tokens) for tokens in (1, 10**9) for _ in range(2000)]
    if what == "empty":
        return [(size(0), "empty", 3000)] * 2000
    kind = what.removesuffix(" without text")
    return [(size(200, **{f"{kind}_tokens": 100}), "media", 5_000_000)] * 2000


SPOILERS = ["health checks", "a health check by one name", "text of another kind", "nonsense", "empty", *MEDIA]


@pytest.mark.parametrize("text", [500, 20_000])
@pytest.mark.parametrize("what", SPOILERS)
def test_no_client_makes_the_estimate_of_another_wrong_by_five_percent(what: str, text: int) -> None:
    sizes = taught()
    before = error(sizes, text)
    for prompt, sender, counted in spoil(what):
        sizes.learn(prompt, sender, counted)
    assert error(sizes, text) < before + 0.05


@pytest.mark.parametrize("mine", [3, 1, 0])
def test_a_client_of_many_sessions_is_heard_by_its_own_account_alone(mine: int) -> None:
    """An account that has taught too little itself goes by all of them, of which that client is one."""
    sizes = PromptSizes()
    for number in range(300):
        for account in ("others", "more")[: 2 if number < 30 else 0]:
            sizes.learn(size(20_000), sender_of(f"{number}", account), 6000)
        if number < mine:
            sizes.learn(size(20_000), sender_of(f"{number}", "mine"), 6000)
        sizes.learn(size(20_000), sender_of(f"{number}", "spoiler"), 16_000)
    assert sizes.estimate(size(20_000), sender_of("new", "mine")).tokens == pytest.approx(6000, rel=0.05)
    assert sizes.estimate(size(20_000), sender_of("new", "spoiler")).tokens == pytest.approx(16_000, rel=0.05)
    assert all(len(learned.sums) <= 64 for each in sizes.classes.values() for learned in each.values())


@pytest.mark.parametrize("kind", MEDIA)
def test_what_a_kind_of_media_costs_is_learned(kind: str) -> None:
    sizes = taught()
    for number in range(5):
        sizes.learn(size(200, **{f"{kind}_tokens": 1000}), f"media-{number}", 200 + 60 + 2500)
    estimate = sizes.estimate(size(200, **{f"{kind}_tokens": 2000}), "x")
    assert estimate.tokens == pytest.approx(200 + 60 + 5000, rel=0.05) and not estimate.guessed


def test_its_tables_have_bounds() -> None:
    sizes = PromptSizes()
    for number in range(2000):
        sizes.learn(PromptSize(prompt_bytes=4000, model=f"m{number}"), f"s{number}", 1000)
    assert len(sizes.classes) <= 257
    assert all(len(learned.sums) <= 64 for each in sizes.classes.values() for learned in each.values())


def test_a_turn_that_a_state_told_of_has_its_size_once_the_gate_asks_again() -> None:
    d = Driver()
    d.pool(total=100_000, free=100_000)
    held = ev.OpenTurn(program_id="a", turn_id="a.1")
    d.send(d.gate(ev.PublisherState, role="gate", held_turns=(held,)))
    d.send(d.gate(ev.TurnQueued, program_id="a", turn_id="a.1", prompt_tokens=5000))
    assert d.program("a").queued_blocks == d.ledger.programs.charges.queued_blocks == 5000
