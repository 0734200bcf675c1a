"""What a reader must know before believing an answer."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from controlplane.lab.calibrate.observed import StepCosts
from controlplane.lab.whatif.observed import Observed
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.recorded import Recorded
from controlplane.lab.workload.run import RunResult

_FAR = 2.0  # times what the stretch shows: beyond it a fitted time is a guess
_MANY = 0.95  # of the turns need less

Note = tuple[object, str]  # whether a note holds, and it


def notes(
    recorded: Recorded, observed: Observed, costs: StepCosts, question: Question, runs: Sequence[RunResult]
) -> list[str]:
    """Each in a sentence without its full stop. ``runs`` are the alternative's."""
    cut = observed.cut_at_start + observed.cut_at_end
    inside = [at_ns for at_ns, _ in recorded.configs if observed.begin_ns < at_ns <= observed.end_ns]
    passive = [engine.passive for engine in recorded.engines.values() if engine.passive]
    errors = [program.error for run in runs for program in run.programs if program.failed]
    candidates: tuple[Note, ...] = (
        (
            cut,
            f"{cut} programs are cut by the stretch's edges ({observed.cut_at_start} began before it, "
            f"{observed.cut_at_end} had not ended): they are simulated as load, their JCT is in no figure",
        ),
        (
            observed.overlapping,
            f"{observed.overlapping} turns ran beside another one of their program: they are "
            "simulated as programs of their own",
        ),
        (
            observed.children,
            f"{observed.children} programs are sub-agents: each is simulated as a program of its "
            "own, and its parent's tool takes the time that it took",
        ),
        (
            observed.unserved,
            f"{observed.unserved} turns were asked for and no end of theirs was seen in an "
            "engine: they are not simulated",
        ),
        *_guesses(observed, costs, runs),
        (
            inside,
            f"the configuration changed {len(inside)} times within the stretch: what held at its "
            "beginning is replayed; choose --since and --until between two changes",
        ),
        (
            passive,
            f"the engine pins and orders nothing ({passive[0] if passive else ''}): nor does it in the "
            "simulator, under any preset",
        ),
        (
            errors,
            f"{len(errors) / max(1, len(runs)):.0f} of {len(runs[0].programs)} programs would have been turned "
            f"away or would have failed (mean of {len(runs)} runs), and are in no figure: {_commonest(errors)}",
        ),
        (
            question.agents,
            "arrivals are those that were recorded: clients that begin a "
            "program when another one ends would come sooner or later than that",
        ),
        (recorded.note, recorded.note),
    )
    return [text for holds, text in candidates if holds]


def _guesses(observed: Observed, costs: StepCosts, runs: Sequence[RunResult]) -> tuple[Note, ...]:
    """What the alternative needs to know of the engine and the stretch does not show."""
    seen = max((turn.prompt_tokens - turn.cached_tokens for turn in observed.served), default=0)
    anew = _many(turn.prompt_tokens - turn.cached_tokens for run in runs for turn in run.turns if not turn.error)
    return (
        (
            not costs.has_sequence,
            f"turns decoded {costs.mean_batch:.1f} at a time, so that the stretch does not tell what one costs "
            "those beside it: as little is taken as can be, and an alternative that runs more at once may look "
            "better than it is",
        ),
        (
            anew > _FAR * seen,
            f"one turn of twenty computes {anew:,.0f} tokens or more anew, and none of the stretch more than "
            f"{seen:,}: how long that takes is a guess",
        ),
    )


def _commonest(errors: Sequence[str]) -> str:
    return Counter(errors).most_common(1)[0][0] if errors else ""


def _many(sizes: Iterable[int]) -> float:
    """What most of them stay below."""
    found = list(sizes)
    return float(np.quantile(found, _MANY)) if found else 0.0
