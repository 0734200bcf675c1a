"""What a stretch says should be changed: a bounded list of candidates, each simulated beside what was decided.

Nothing is changed here. A candidate is advised where its interval excludes no change, it is for the better, and it
is larger than what the replay of the recorded decisions is off by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from controlplane.config.changes import values
from controlplane.core.errors import ConfigError
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import SHARES
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays
from controlplane.lab.workload.telemetry import Telemetry

PRESETS = ("penstock", "mars", "continuum", "thunderagent", "concur", "fcfs")  # that a node is likely to want
MORE_POOL = "+25%"
# Factors on a key's value, where the policy in force has the key and its range the result.
_FACTORS: Mapping[str, tuple[float, ...]] = {
    "admission.kv_high": (0.85, 1.15),
    "admission.waste": (0.5, 2.0),
    "admission.watermark_high": (0.9,),
    "retention.kv_high": (0.85, 1.05),
    "retention.ttl_max_s": (0.1, 0.5),
    "retention.watermark_high": (0.9,),
}
_TOOLS_PER_CPU = (1.0, 2.0)
_PER_CPU = "control.tool_slots.per_cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One candidate's answer. ``why``: for what reason it is advised, or is not."""

    answer: Answer
    advised: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """As ``penstock advise --json`` lists it."""
        said = self.answer.to_json()
        asked = self.answer.question
        return {
            "what": asked.title,
            "preset": asked.preset,
            "settings": list(asked.settings),
            "pool_tokens": asked.pool_tokens,
            "advised": self.advised,
            "why": self.why,
            "change": said["change"],
            "alternative": said["alternative"],
            "predicted": said["predicted"],
        }


def candidates(replays: Replays) -> list[Question]:
    """What may be worth changing: presets, parameters of the policies in force, and how large the pool is."""
    running = values(replays.config)
    found = [Question(preset=name) for name in PRESETS if name != replays.config.policies.name]
    for key, factors in _FACTORS.items():
        value = running.get(key)
        if isinstance(value, int | float) and value > 0:
            found += [Question(settings=(f"{key}={value * factor:.4g}",)) for factor in factors]
    found += [Question(settings=(setting,)) for setting in _bounds(running, _most_at_once(replays))]
    if any(program.tells is Telemetry.FULL for program in replays.observed.programs):
        found += [
            Question(settings=(f"{_PER_CPU}={per_cpu:g}",))
            for per_cpu in _TOOLS_PER_CPU
            if per_cpu != running.get(_PER_CPU)
        ]
    found.append(Question(pool_tokens=MORE_POOL))
    return found


def advise(
    replays: Replays,
    figure: str,
    questions: Sequence[Question],
    told: Callable[[int, int], None] | None = None,
) -> list[Advice]:
    """Each candidate's answer, the best change of ``figure`` first. ``told`` hears how many of how many are done.

    A value that a policy's range does not have is no candidate.
    """
    found = []
    for number, question in enumerate(questions, start=1):
        try:
            found.append(_judged(replays.ask(question), figure))
        except ConfigError:
            if question.preset or question.pool_tokens:
                raise
        if told is not None:
            told(number, len(questions))
    better = -1 if figure in SHARES else 1
    return sorted(found, key=lambda each: better * each.answer.change[figure].value)


def _judged(answer: Answer, figure: str) -> Advice:
    found, error = answer.change[figure], abs(answer.replay_error[figure])
    better = found.value > 0 if figure in SHARES else found.value < 0
    if not better:
        return Advice(answer=answer, advised=False, why="no better")
    if not found.excludes(0.0):
        return Advice(answer=answer, advised=False, why="its interval includes no change")
    if abs(found.value) <= error:
        return Advice(answer=answer, advised=False, why="no more than the replay is off by")
    return Advice(answer=answer, advised=True, why="needs hardware" if answer.question.pool_tokens else "advised")


def _bounds(running: Mapping[str, Any], most: int) -> list[str]:
    """Of a window that has some, bounds that would have been felt."""
    found = []
    if "admission.window_max" in running and most > 2:
        found.append(f"admission.window_max={max(float(running.get('admission.window_min', 1)), ceil(most / 2)):g}")
    least, first = running.get("admission.window_min"), running.get("admission.window_initial")
    if least is not None and first is not None and least < (wanted := min(first, ceil(most / 4))):
        found.append(f"admission.window_min={wanted:g}")
    if running.get("admission.window") == 0 and most > 2:  # a fixed one without a bound
        found.append(f"admission.window={ceil(most / 2)}")
    return found


def _most_at_once(replays: Replays) -> int:
    """Programs that were under way at one time, at most."""
    programs = replays.observed.measured_programs
    steps = [(each.arrived_ns, 1) for each in programs] + [(each.ended_ns, -1) for each in programs]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most
