"""What the operator is told, by ``status``, against what was done; and whether the window jumps."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from support.daemon_process import NODE

from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.presets import PRESETS
from controlplane.operate.client import connect

from .harms import HARMS, LINGERS

LOOK_S = 0.5
WITHIN_S = 30.0  # after a harm, for what happened once; and for what is over to be told no more
_LATELY_S = 600.0
_NOTES = frozenset({"turns_unnamed", "restart_needed", "draining", "held", "stands_by"})


@dataclass(slots=True, kw_only=True)
class Done:
    """One harm. ``is_alone``: nothing else was done, and all was well before."""

    name: str
    began_s: float
    is_alone: bool
    ended_s: float = math.inf
    note: str = ""  # what became of the processes

    @property
    def lasted_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(slots=True, kw_only=True)
class Look:
    """A status that was answered."""

    at_s: float
    boot_id: str
    window: float
    reason: str
    waiting: int  # programs
    found: dict[str, str]  # by finding


@dataclass(slots=True)
class Operator:
    """Asks ``penstock status`` twice a second."""

    api: str
    looks: list[Look] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                status = await asyncio.to_thread(self._ask)
            except ControlPlaneError as error:
                self.unanswered[str(error)[:120]] += 1
                continue
            self.looks.append(
                Look(
                    at_s=loop.time(),
                    boot_id=status.boot_id,
                    window=status.window.window,
                    reason=status.window.reason,
                    waiting=status.pressure.queue_length,
                    found={each.name: each.found for each in status.findings},
                )
            )

    def _ask(self):  # type: ignore[no-untyped-def]
        with connect(self.api, NODE) as client:
            return client.call("GetStatus")

    # -- told ----------------------------------------------------------------------------------------------

    def told_after_s(self, done: Done) -> float:
        """Until its finding was seen, from its beginning, or end where the daemon could not; infinite: too late."""
        finding = HARMS[done.name].finding
        lingers = finding in LINGERS
        before = next((each.found.get(finding) for each in reversed(self.looks) if each.at_s < done.began_s), None)
        until_s = done.ended_s + (WITHIN_S if lingers else 2 * LOOK_S)
        for look in self.looks:
            told = look.found.get(finding)
            if done.began_s <= look.at_s <= until_s and told and not (lingers and told == before):
                return look.at_s - (done.began_s if HARMS[done.name].decides else done.ended_s)
        return math.inf

    def _must_be_told(self, done: Done) -> bool:
        """A gate that hangs shows once it is given slots for turns that wait there.

        A daemon that is killed within a second of its freeze's end could not tell.
        """
        harm = HARMS[done.name]
        if harm.finding in LINGERS and not self._has_lived_on(done):
            return False
        first = [look.waiting for look in self.looks if abs(look.at_s - done.began_s) < 2 * LOOK_S]
        waits = harm.finding != "gate_down" or (first and all(first))
        return bool(harm.finding and done.is_alone and done.lasted_s >= harm.at_least_s and waits)

    def _has_lived_on(self, done: Done) -> bool:
        """Whether the same daemon answered a while after."""
        before = next((each.boot_id for each in reversed(self.looks) if each.at_s < done.began_s), "")
        return any(
            each.boot_id == before and done.ended_s + 2 * LOOK_S <= each.at_s <= done.ended_s + WITHIN_S
            for each in self.looks
        )

    def without_cause(self) -> Iterator[str]:
        """Each time that something was told which nothing that was done explains."""
        for name in sorted({name for look in self.looks for name in look.found} - _NOTES):
            seen = [look for look in self.looks if name in look.found and not self._is_explained(name, look.at_s)]
            for looks in _spells(seen):
                lasted_s = looks[-1].at_s - looks[0].at_s
                yield f"{name} for {lasted_s:.0f} s, {self._after(looks[0].at_s)}: {looks[0].found[name][:160]}"

    def _is_explained(self, finding: str, at_s: float) -> bool:
        lasts_s = WITHIN_S + (_LATELY_S if finding in LINGERS else 0)
        causes = (each for each in self.done if finding in HARMS[each.name].may | {HARMS[each.name].finding})
        return any(each.began_s <= at_s <= each.ended_s + lasts_s for each in causes)

    def _after(self, at_s: float) -> str:
        latest = [
            f"{each.name} ({each.lasted_s:.1f} s, {at_s - each.ended_s:.1f} s ago)"
            for each in self.done
            if each.began_s < at_s
        ]
        return f"after {', '.join(latest[-3:]) or 'nothing'}"

    def table(self) -> tuple[list[str], int]:
        """Lines by harm, and how often something was not told that had to be."""
        row = "{:<32}{:>5}{:>14}{:>6}{:>5}{:>21}{:>16}".format
        lines = [row("harm", "done", "must be told", "told", "not", "by", "after p50, max")]
        missing = 0
        for name, harm in HARMS.items():
            done = [each for each in self.done if each.name == name]
            if not done:
                continue
            must = [each for each in done if self._must_be_told(each)]
            after_s = [self.told_after_s(each) for each in must]
            told_s = [each for each in after_s if each < math.inf]
            missing += len(must) - len(told_s)
            times = f"{median(told_s):.1f}, {max(told_s):.1f} s" if told_s else ""
            counts = (len(done), len(must), len(told_s), len(must) - len(told_s))
            lines.append(row(name, *counts, harm.finding, times))
            lines += [
                f"    not told: it lasted {each.lasted_s:.1f} s, {each.note}, {self._around(each)}"
                for each, s in zip(must, after_s, strict=True)
                if s == math.inf
            ]
        return lines, missing

    def _around(self, done: Done) -> str:
        """How often the operator was answered meanwhile, and what was done next."""
        looks = [each for each in self.looks if done.began_s <= each.at_s <= done.ended_s + WITHIN_S]
        boots = len({each.boot_id for each in looks})
        then = [f"{each.name} after {each.began_s - done.ended_s:.1f} s" for each in self.done]
        then = then[self.done.index(done) + 1 :][:2]
        found = looks[0].found if looks else {}
        return f"{len(looks)} looks at {boots} boots, then {', '.join(then)}; found {found}"

    # -- the window ----------------------------------------------------------------------------------------

    def jumps(self) -> Iterator[str]:
        """Each time that the window moved further than its law lets it in the control intervals between two looks.

        While the daemon is dead or frozen there are none.
        """
        law, was_cut = PRESETS["penstock"].admission, False
        assert isinstance(law, Aimd)
        for before, after in pairwise(self.looks):
            steps = 2 + int(after.at_s - before.at_s - self._undecided_s(before.at_s, after.at_s))
            most = before.window + law.alpha * steps if was_cut else before.window * 2**steps  # slow start
            least = max(law.window_min, before.window * law.beta**steps)
            if not least - 1e-6 <= after.window <= most + 1e-6:
                yield (
                    f"{before.window:.2f} ({before.reason}) to {after.window:.2f} ({after.reason}) in "
                    f"{after.at_s - before.at_s:.1f} s, {self._after(after.at_s)}"
                )
            was_cut = was_cut or after.window < before.window

    def _undecided_s(self, from_s: float, to_s: float) -> float:
        idle = [each for each in self.done if not HARMS[each.name].decides]
        spans = [(max(from_s, each.began_s), min(to_s, each.ended_s)) for each in idle]
        return max((end - begin for begin, end in spans if end > begin), default=0.0)

    def windows(self) -> Iterator[str]:
        """By harm: the window right before and right after."""
        for name in HARMS:
            moves = Counter[str]()
            for done in (each for each in self.done if each.name == name):
                before = next((each for each in reversed(self.looks) if each.at_s < done.began_s), None)
                after = next((each for each in self.looks if each.at_s > done.ended_s), None)
                if before and after:
                    moves[f"{before.window:.1f}-{after.window:.1f}"] += 1
            if moves:
                yield f"{name:<32}{', '.join(f'{move} ({count})' for move, count in moves.most_common(8))}"


def _spells(looks: list[Look]) -> Iterator[list[Look]]:
    """Cut where a minute lies between two."""
    spell: list[Look] = []
    for look in looks:
        if spell and look.at_s - spell[-1].at_s > 60:
            yield spell
            spell = []
        spell.append(look)
    if spell:
        yield spell
