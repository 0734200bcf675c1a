"""Carries out what the rule of automatic advice says (``core.tuning``), and keeps the stretch that it judges by.

A step goes the way of a reload. What it changes lies over the operator's file, options and promotions for as long
as this daemon leads: nothing is written into a file, and a restart begins from what the operator says.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controlplane.config.changes import values
from controlplane.core.commands import Command
from controlplane.core.events import Event
from controlplane.core.tuning import Answer, Ask, Keep, Order, Phase, Rules, Seen, State, TakeBack, advance
from controlplane.core.types import seconds
from controlplane.shell.advise.status import KEPT, TAKEN_BACK, TRIED, AdviseStatus, SettingChange
from controlplane.shell.logs import logger
from controlplane.shell.reload import Reloader
from controlplane.shell.stretch import Stretch
from controlplane.shell.tasks import described

_TOLD = 16  # of the latest changes


@dataclass(slots=True, kw_only=True)
class _Run:
    rules: Rules
    stretch: Stretch
    state: State
    is_busy: bool = False


class AutoAdvice:
    """At most one run of it, while the configuration says ``auto = true``. Who is in ``heard`` hears each change.

    ``why_not`` says why nothing may be changed now, or nothing. ``make_stretch`` makes an empty stretch of a length
    in nanoseconds.
    """

    def __init__(
        self, reloader: Reloader, make_stretch: Callable[[int], Stretch], why_not: Callable[[], str]
    ) -> None:
        self._reloader, self._make_stretch, self._why_not = reloader, make_stretch, why_not
        self.heard: list[Callable[[SettingChange], None]] = []
        self._run: _Run | None = None
        self._latest: deque[SettingChange] = deque(maxlen=_TOLD)
        self._counts = dict.fromkeys((TRIED, KEPT, TAKEN_BACK), 0)  # of this daemon's life
        self._log = logger("advise")

    @property
    def goal(self) -> str:
        """The figure that is to become better."""
        return self._reloader.config.advise.goal

    def forget(self) -> None:
        """Begin anew from what operators say: this daemon decides no more, or not yet."""
        for key in list(self._reloader.source.tuned):
            self._reloader.tune(key, self._reloader.untuned(key), "automatic advice forgets what it changed")
        self.close()

    def close(self) -> None:
        """Hear nothing more, and keep nothing of what was heard."""
        if self._run is not None:
            self._run.stretch.drop()
            self._run = None

    def look(self, now_ns: int, answer: Answer | None = None) -> tuple[Ask, Stretch] | None:
        """Do what is due; a question that is to be asked of the stretch. ``answer``: to the one before."""
        run = self._wanted(now_ns)
        if run is None:
            return None
        if answer is not None:
            run.is_busy = False
        if why_not := self._why_not():
            run.stretch.drop()  # there will be a hole
        seen = Seen(
            values=values(self._reloader.config),
            heard_since_ns=run.stretch.began_ns,
            version=self._reloader.orders,
            why_not=why_not,
            is_busy=run.is_busy,
        )
        before = run.state
        run.state, order = advance(before, seen, run.rules, now_ns, answer)
        if run.state.reason != before.reason and run.state.reason:
            self._log.info("advice", phase=run.state.phase, reason=run.state.reason)
        if run.state.phase is Phase.RESTS or run.state.version != before.version:
            run.stretch.drop()  # what is heard now will not be asked for
        if isinstance(order, Ask):
            run.is_busy = True
            return order, run.stretch
        if order is not None:
            self._obey(run, order, now_ns)
        return None

    def hear(
        self, fed: Sequence[tuple[int, Sequence[Event]]], decided: tuple[int, Sequence[Command]] | None
    ) -> None:
        """What the controller was told, and then decided. Raises nothing."""
        run = self._run
        if run is None or run.state.phase is Phase.RESTS or run.stretch.failed:
            return
        try:
            run.stretch.write(fed, decided)
            if decided is not None:
                run.stretch.turn(decided[0])
        except Exception as error:
            run.stretch.failed = described(error)
            self._log.error("failed", error=run.stretch.failed)

    def status(self, now_ns: int) -> AdviseStatus | None:
        """How it stands; None while it is off and has changed nothing in this daemon's life."""
        run = self._run if self._reloader.config.advise.auto else None
        if run is None and not self._latest:
            return None
        told = AdviseStatus(
            goal=self.goal,
            phase="off",
            reason="automatic advice is off",
            until_ns=0,
            heard_ns=0,
            wanted_ns=0,
            trying="",
            in_force=tuple(f"{key} = {value!r}" for key, value in self._reloader.source.tuned.items()),
            tried=self._counts[TRIED],
            kept=self._counts[KEPT],
            undone=self._counts[TAKEN_BACK],
            latest=tuple(self._latest),
        )
        if run is None:
            return told
        state, began_ns = run.state, run.stretch.began_ns
        rests = state.phase is Phase.RESTS
        return replace(
            told,
            phase=state.phase,
            reason=run.stretch.failed or state.reason,
            until_ns=state.until_ns if rests else 0,
            heard_ns=max(0, now_ns - max(state.since_ns, began_ns)) if began_ns and not rests else 0,
            wanted_ns=0 if rests else run.rules.stretch_ns,
            trying=f"{state.step.key} = {state.step.after!r}" if state.step else "",
        )

    # Small parts

    def _wanted(self, now_ns: int) -> _Run | None:
        """The run that the configuration wants: none, this one, or a new one where its rules have changed."""
        asked = self._reloader.config.advise
        if not asked.auto:
            self.close()
            return None
        rules = Rules(
            goal=asked.goal,
            bounds=self._reloader.resolved.bounds,
            step_ratio=asked.step_ratio,
            least_ratio=asked.least_ratio,
            stretch_ns=seconds(asked.stretch_s),
            cooldown_ns=seconds(asked.cooldown_s),
        )
        run = self._run
        if run is None:
            state = State(version=self._reloader.orders, since_ns=now_ns)
            run = self._run = _Run(rules=rules, stretch=self._make_stretch(rules.stretch_ns), state=state)
        elif run.rules != rules:
            run.stretch.drop()
            run.rules, run.stretch = rules, self._make_stretch(rules.stretch_ns)
        return run

    def _obey(self, run: _Run, order: Order, now_ns: int) -> None:
        assert not isinstance(order, Ask)
        step = order.step
        outcome, measured = TRIED, None
        if isinstance(order, Keep):
            outcome, measured = KEPT, order.measured
        elif isinstance(order, TakeBack):
            outcome, measured = TAKEN_BACK, order.measured
        if outcome != KEPT:
            value = step.after if outcome == TRIED else step.before
            state = self._reloader.tune(step.key, value, f"automatic advice: {outcome}: {order.reason}")
            if state.refused:
                self._log.error("refused", key=step.key, error=state.refused)
            run.stretch.drop()  # a replay has one configuration
        change = SettingChange(
            at_ns=now_ns,
            outcome=outcome,
            key=step.key,
            before=step.before,
            after=step.after,
            reason=order.reason,
            goal=run.rules.goal,
            predicted=step.predicted,
            low=step.low,
            high=step.high,
            measured=measured or 0.0,
            is_measured=measured is not None,
        )
        self._latest.append(change)
        self._counts[outcome] += 1
        self._log.info("setting", outcome=outcome, key=step.key, before=step.before, after=step.after)
        for told in self.heard:
            told(change)
