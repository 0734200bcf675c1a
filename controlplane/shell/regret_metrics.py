"""What decisions cost and brought, as instruments: sums that grow, by kind of decision, outcome and cause."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from controlplane.core.regret import Sums, Total

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretState:
    """An instrument, and of what each total is counted under which labels."""

    name: str
    unit: str
    description: str
    read: Callable[[Total], float]
    labels: tuple[str, ...]


REGRET_STATES = (
    RegretState(
        name="penstock.verdicts",
        unit="",
        description="Decisions that were closed by what happened, by their kind, outcome and cause",
        read=lambda total: total.count,
        labels=("kind", "outcome", "cause"),
    ),
    RegretState(
        name="penstock.regret.again_tokens",
        unit="{token}",
        description="Tokens computed again, by the decision that they are charged to and why",
        read=lambda total: total.again_tokens,
        labels=("kind", "cause"),
    ),
    RegretState(
        name="penstock.regret.cost",
        unit="s",
        description="What decisions cost: memory, waiting and prefill, in seconds of an engine",
        read=lambda total: total.cost_s,
        labels=("kind",),
    ),
    RegretState(
        name="penstock.regret.gain",
        unit="s",
        description="What decisions gained: prefill that was saved and memory that was freed",
        read=lambda total: total.gain_s,
        labels=("kind",),
    ),
    RegretState(
        name="penstock.regret.paid",
        unit="s",
        description="What gaps between turns cost as they were decided",
        read=lambda total: total.paid_s,
        labels=(),
    ),
    RegretState(
        name="penstock.regret.best",
        unit="s",
        description="What the same gaps would have cost in hindsight; paid over best is the regret, 1 at its least",
        read=lambda total: total.best_s,
        labels=(),
    ),
)


def measure_regret(meter: Meter, sums: Callable[[], Sums]) -> None:
    """Make the instruments, which read the sums as they are."""
    for state in REGRET_STATES:
        meter.create_observable_counter(
            state.name, [_callback(state, sums)], unit=state.unit, description=state.description
        )
    meter.create_observable_counter(
        "penstock.regret.pins_lost",
        [lambda _: [Observation(sums().pins_lost)]],
        unit="",
        description="Pins that engines gave up before their time",
    )


def _callback(state: RegretState, sums: Callable[[], Sums]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        found: Counter[Labels] = Counter()
        for (kind, outcome, cause), total in list(sums().totals.items()):  # in any thread: a copy
            known = {"kind": kind, "outcome": outcome.value, "cause": cause.value}
            found[tuple((name, known[name]) for name in state.labels)] += state.read(total)  # type: ignore[assignment]
        return [Observation(value, dict(labels)) for labels, value in found.items()]

    return observe
