"""The experiment: blocks of slices, what the preset changes in each, and when that is enough to end it.

The figure is the mean over blocks of the logarithm of a ratio: mean completion over what programs asked for under
the preset, to the same under stock. A ratio, since programs of a loaded hour take times as long as those of a quiet
one; over what they asked for, since what comes in a slice is chance and not the policies' doing; its logarithm,
since that of a half and of a double are alike far from none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log

from controlplane.core.experiment.confidence import Interval, Moments, confidence_interval
from controlplane.core.experiment.outcomes import Outcome, Outcomes, Seen
from controlplane.core.experiment.rules import SwitchbackRules
from controlplane.core.experiment.slices import Slices
from controlplane.core.model.events import Event
from controlplane.core.model.types import FEWEST_TO_JUDGE, seconds

ALPHA = 0.05
GAIN, LOSS, LENGTH = "gain", "loss", "length"
MOST_BLOCKS = 1000
MOST_CENSORED = 0.1  # of programs: with more of them slices tell too much of each other's queues
_LEAST_AGAIN = 0.001  # of the prompts' tokens: between less and none there is no ratio
_MOST = 50.0  # of a logarithm that is told: a wide end is no error
_AWAY = 0.25  # of the washout: who was not there for so long did not keep to the slice's policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What the preset changed in one block: logarithms of ratios; None where one side has nothing to compare."""

    began_ns: int
    programs: int
    completion: float
    censored: int = 0  # programs that took longer than the washout, or failed
    first_token_p99: float | None = None
    again_tokens: float | None = None


@dataclass(slots=True, kw_only=True)
class SwitchbackState:
    """What a snapshot keeps. ``key`` says of what: under another preset or other rules it begins anew."""

    key: str = ""
    began_ns: int = 0
    heard_ns: int = 0
    first_block: int = 0
    next_block: int = 0  # to be closed
    spoiled: set[int] = field(default_factory=set)  # open blocks in which nobody was there for a while
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    programs: dict[str, Seen] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    left_out: int = 0  # blocks with too few programs, or in which nobody was there for a while
    absent: int = 0  # of these: the latter
    ended: str = ""  # gain, loss or length; empty: it goes on
    ended_ns: int = 0
    since_ns: int = 0  # a loss: since when


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A change that the preset makes: a ratio less 1. ``is_bounded``: both ends of its 95% interval are known."""

    name: str
    value: float
    low: float
    high: float
    is_bounded: bool
    blocks: int

    @classmethod
    def of(cls, name: str, found: Interval) -> "Estimate":
        ends = (found.low, found.high) if found.is_bounded else (found.mean, found.mean)
        value, low, high = (exp(min(each, _MOST)) - 1 for each in (found.mean, *ends))
        return cls(name=name, value=value, low=low, high=high, is_bounded=found.is_bounded, blocks=found.count)


class Switchback:
    """Hears events and time, and says under which policies the node is to be now."""

    def __init__(self, rules: SwitchbackRules, key: str, state: SwitchbackState) -> None:
        self.rules, self.state = rules, state
        self.slices = Slices(rules, key)
        self._heard = Outcomes(self.slices, state.outcomes, state.programs)

    @classmethod
    def begin(cls, rules: SwitchbackRules, key: str, now_ns: int) -> "Switchback":
        """A new one, whose first block is the next one."""
        slices = Slices(rules, key)
        first = slices.block(slices.at(now_ns)) + 1
        state = SwitchbackState(key=key, began_ns=now_ns, heard_ns=now_ns, first_block=first, next_block=first)
        return cls(rules, key, state)

    def event(self, event: Event, now_ns: int) -> None:
        if not self.state.ended:
            self._heard.event(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """Time passes, and somebody decides. Close the blocks that are over."""
        state, slices = self.state, self.slices
        if state.ended:
            return
        self.away(now_ns, now_ns - state.heard_ns)
        state.heard_ns = now_ns
        # A slice more, in which its last programs end.
        while (state.next_block + 1) * self.rules.stock_every < slices.at(now_ns) and not state.ended:
            self._close(state.next_block, now_ns)
            state.next_block += 1

    def away(self, now_ns: int, for_ns: int) -> None:
        """Nobody decided for so long until now, of which this clock need not have counted anything."""
        state, slices = self.state, self.slices
        if for_ns > _AWAY * seconds(self.rules.washout_s):
            first = max(state.next_block, slices.block(slices.at(state.heard_ns)))
            state.spoiled.update(range(first, slices.block(slices.at(now_ns)) + 1))

    def is_stock(self, now_ns: int) -> bool:
        """Whether the stock policies are to be in force."""
        if self.state.ended:
            return self.state.ended == LOSS
        number = self.slices.at(now_ns)
        return self.slices.block(number) >= self.state.first_block and self.slices.is_stock(number)

    def estimates(self) -> tuple[Estimate, ...]:
        """What the preset changes, from the first block on; where a loss has ended it, from that one's first on."""
        blocks, since_ns = self.state.blocks, self.state.since_ns
        at = sum(each.began_ns < since_ns for each in blocks)
        alpha = _alpha_from(at) if since_ns else ALPHA
        found = []
        for name in ("completion", "first_token_p99", "again_tokens"):
            before, values = (
                [value for each in side if (value := getattr(each, name)) is not None]
                for side in (blocks[:at], blocks[at:])
            )
            if values:
                found.append(Estimate.of(name, confidence_interval(values, alpha, before)))
        return tuple(found)

    def _close(self, block: int, now_ns: int) -> None:
        state, every = self.state, self.rules.stock_every
        numbers = range(block * every, (block + 1) * every)
        self._heard.settle(numbers.stop)
        found = {number: state.outcomes.pop(number, Outcome()) for number in numbers}
        if block in state.spoiled:
            state.spoiled.remove(block)
            state.absent += 1
            state.left_out += 1
            return
        if min(each.programs for each in found.values()) < FEWEST_TO_JUDGE:
            state.left_out += 1
            return
        stock = next(outcome for number, outcome in found.items() if self.slices.is_stock(number))
        others = [outcome for outcome in found.values() if outcome is not stock]
        if (compared := compare(stock, others, began_ns=numbers.start * self.slices.length_ns)) is None:
            state.left_out += 1
            return
        state.blocks.append(compared)
        state.ended, since = judge(state.blocks, self.rules)
        if state.ended:
            state.ended_ns = now_ns
            state.since_ns = state.blocks[since].began_ns
            state.outcomes.clear()
            state.programs.clear()


def compare(stock: Outcome, others: Sequence[Outcome], *, began_ns: int) -> Block | None:
    """One slice under stock with those beside it: the mean of what each of them says; None where one says none."""

    def change(of: list[float], to: float) -> float | None:
        return sum(log(each / to) for each in of) / len(of) if to > 0 and min(of) > 0 else None

    completion = change([_slowness(each) for each in others], _slowness(stock))
    if completion is None:
        return None
    return Block(
        began_ns=began_ns,
        programs=stock.programs + sum(each.programs for each in others),
        completion=completion,
        censored=stock.censored + sum(each.censored for each in others),
        first_token_p99=change([each.first_token_s(0.99) for each in others], stock.first_token_s(0.99)),
        again_tokens=change([_again(each) for each in others], _again(stock)),
    )


def _slowness(of: Outcome) -> float:
    return of.completion_s / of.asked_s if of.asked_s > 0 else 0.0


def _again(of: Outcome) -> float:
    return of.again_tokens / of.prompt_tokens + _LEAST_AGAIN if of.prompt_tokens else 0.0


def judge(blocks: Sequence[Block], rules: SwitchbackRules) -> tuple[str, int]:
    """Why the experiment ends, empty: it goes on; and the block from which on there is a loss.

    A loss is looked for from every block on, so that what was good for long hides nothing that is bad since noon.
    Of all of these none errs with more than ``ALPHA``: each has its part of it.
    A gain is not believed while more than ``MOST_CENSORED`` of programs took longer than the washout.
    """
    before = [Moments()]
    for each in blocks[:-1]:
        before.append(replace(before[-1]))
        before[-1].add(each.completion)
    moments = Moments()
    for at in range(len(blocks) - 1, -1, -1):
        moments.add(blocks[at].completion)
        found = moments.interval(_alpha_from(at), before[at])
        if found.low > log(1 + rules.loss_ratio):
            return LOSS, at
    censored, programs = (sum(getattr(each, name) for each in blocks) for name in ("censored", "programs"))
    least = log(1 - rules.gain_ratio) if rules.gain_ratio < 1 and censored <= MOST_CENSORED * programs else -inf
    if moments.interval(ALPHA).high < least:
        return GAIN, 0
    return (LENGTH if len(blocks) >= MOST_BLOCKS else ""), 0


def _alpha_from(at: int) -> float:
    """What of ``ALPHA`` a loss has that is looked for from block ``at`` on; with j = at + 1 they sum to it."""
    return ALPHA / ((at + 1) * (at + 2))
