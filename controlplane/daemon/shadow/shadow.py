"""The shadow: a controller of its own that hears what the one in force hears, and whose word reaches nobody.

It can disturb nothing: it hears once what was decided is on its way, it reads the other one's records and never
writes there, an error of its own ends it and says so, and what it may take of the daemon's CPU time is bounded.
While little of that is left it decides once in an interval and not at each boundary; with nothing left it rests,
and begins again from how things stand then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controlplane.config import Config
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.bus import snapshot as snapshots
from controlplane.daemon.pipeline import Decided, Fed
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.tasks import described
from controlplane.daemon.shadow.budget import Budget
from controlplane.daemon.shadow.comparator import Difference, DifferenceCounts, Differences, ShadowComparator
from controlplane.daemon.shadow.estimates import ShadowEstimate
from controlplane.daemon.shadow.recording import RollingRecording

DECIDES, THIN, RESTS, FAILED, WAITS = "decides", "decides once an interval", "rests", "failed", "waits"
_MOST_SHOWN = 8  # of the latest differences


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """One look at the shadow."""

    preset: str
    settings: tuple[str, ...]
    standing: str  # decides, decides once an interval, rests, failed or waits
    reason: str  # why it does not decide, or not each time
    compared_ns: int  # for so long it was compared with the controller in force, rests included
    window: Window
    active: int  # root programs that hold a slot as it sees it
    waiting: int
    ahead: int  # whom it let in and the controller in force holds
    lead_s: float  # mean, of those that it let in earlier
    counts: DifferenceCounts
    latest: tuple[Difference, ...]
    cpu_ratio: float  # what it took of the daemon's CPU time
    rests: int
    estimate: ShadowEstimate


@dataclass(slots=True, kw_only=True)
class _Run:
    """What there is of one wanted shadow."""

    config: Config
    settings: tuple[str, ...]
    budget: Budget
    recording: RollingRecording | None
    differences: Differences = field(default_factory=Differences)
    pair: ShadowComparator | None = None
    began_ns: int = 0
    begin_cost_ns: int = 0
    rests: int = 0
    failed: str = ""
    waits: str = ""


class Shadow:
    """At most one shadow beside ``live``. ``configure`` says which one, or none."""

    def __init__(
        self,
        live: Callable[[], Controller],
        make: Callable[..., Controller] = Controller,
        **clocks: Callable[[], int],
    ) -> None:
        self._live, self._make, self._clocks = live, make, clocks
        self._run: _Run | None = None
        self._now_ns = 0
        self._log = logger("shadow")

    def configure(
        self,
        config: Config | None,
        *,
        settings: Sequence[str] = (),
        cpu_ratio: float = 0.2,
        recording: RollingRecording | None = None,
    ) -> None:
        """Have a shadow that decides by ``config``, or none. It begins anew, from how the live one stands.

        ``recording`` is written while it decides, on its account.
        """
        if self._run is not None:
            self._drop_pair(self._run)
        self._run = None
        if config is not None:
            budget = Budget(cpu_ratio, **self._clocks)
            self._run = _Run(config=config, settings=tuple(settings), budget=budget, recording=recording)
            self._log.info("wanted", preset=config.policies.name, settings=list(settings))

    def begin(self, now_ns: int) -> None:
        """Begin from how the live one stands now. Without it, it does so once it hears something."""
        if self._run is not None and self._run.pair is None and not (self._run.failed or self._run.waits):
            self._guarded(self._run, self._begin, now_ns)

    def stand_by(self, reason: str) -> None:
        """Decide nothing while the controller beside does not either; empty: it does again."""
        if self._run is not None:
            self._run.waits = reason
            if reason:
                self._drop_pair(self._run)

    def observe(self, fed: Fed, decided: Decided) -> None:
        """What the live controller was told, and then decided. Raises nothing."""
        run = self._run
        if run is None or run.failed or run.waits:
            return
        self._now_ns = decided[0] if decided else (fed[-1][0] if fed else self._now_ns)
        if run.pair is not None:
            self._guarded(run, self._follow, fed, decided)
        elif run.rests and not run.budget.allows(run.begin_cost_ns):
            self._guarded(run, self._write, fed, decided)
        else:
            if run.rests:
                self._guarded(run, self._write, fed, decided)
            self._guarded(run, self._begin, self._now_ns)

    def _guarded(self, run: _Run, work: Callable[..., None], *arguments: object) -> None:
        try:
            with run.budget.spending():
                work(run, *arguments)
        except Exception as error:  # whatever it is, it is the shadow's alone
            run.failed = described(error)
            self._drop_pair(run)
            self._log.error("failed", preset=run.config.policies.name, error=run.failed)
            return
        if run.begin_cost_ns < 0:
            run.begin_cost_ns = run.budget.last_ns
        if run.pair is not None and run.budget.is_spent:
            run.pair = None  # what happens is written down all the same, which takes a fraction of that
            run.rests += 1
            self._log.warning("rests", share=round(run.budget.share_ratio, 3), allowed=run.budget.ratio)

    def _drop_pair(self, run: _Run) -> None:
        run.pair = None
        if run.recording is not None:
            run.recording.drop()

    def _write(self, run: _Run, fed: Fed, decided: Decided) -> None:
        if run.recording is None:
            return
        if run.budget.is_overdrawn:
            run.recording.drop()
            return
        run.recording.write(fed, decided)
        if decided is not None:
            run.recording.turn(decided[0])

    def _begin(self, run: _Run, now_ns: int) -> None:
        live = self._live()
        taken = b"".join(snapshots.pieces(live.state, preset=live.preset.name, now_ns=now_ns))
        policies = run.config.policies
        state = snapshots.restore(snapshots.read(taken), policies)
        controller = self._make(policies, run.config.control, state)
        run.pair = ShadowComparator(live, controller, run.differences)
        run.began_ns = run.began_ns or now_ns
        run.begin_cost_ns = -1  # it is known once all of it is done
        if run.recording is not None:
            run.recording.turn(now_ns)

    def _follow(self, run: _Run, fed: Fed, decided: Decided) -> None:
        comparator = run.pair
        assert comparator is not None
        controller = comparator.shadow
        self._write(run, fed, decided)
        for now_ns, events in fed:
            for event in events:
                controller.receive(event, now_ns)
        if decided is None:
            return
        now_ns, live = decided
        interval_ended = now_ns >= controller.state.interval_ends_ns
        if run.budget.is_thin and not interval_ended:
            comparator.sync_from_live(live, now_ns)
            return
        own = controller.tick(now_ns) if controller.next_deadline_ns() <= now_ns else ()
        comparator.compare(live, own, now_ns)
        if interval_ended:
            comparator.refresh_ahead(now_ns)

    # What others read

    def status(self, now_ns: int, estimate: ShadowEstimate | None = None) -> ShadowStatus | None:
        """How it stands; None if none is wanted. ``estimate``: what it would change."""
        run = self._run
        if run is None:
            return None
        pair, found = run.pair, run.differences
        programs = pair.shadow.ledger.programs if pair else None
        standing, reason = _standing(run)
        return ShadowStatus(
            preset=run.config.policies.name,
            settings=run.settings,
            standing=standing,
            reason=reason,
            compared_ns=max(0, now_ns - run.began_ns) if run.began_ns else 0,
            window=pair.shadow.window if pair else Window(limit=0, window=0.0, reason=reason),
            active=programs.charges.active_roots if programs else 0,
            waiting=len(programs.queue) if programs else 0,
            ahead=len(pair.ahead) if pair else 0,
            lead_s=found.lead_s,
            counts=found.counts,
            latest=tuple(list(found.latest)[-_MOST_SHOWN:]),
            cpu_ratio=run.budget.share_ratio,
            rests=run.rests,
            estimate=estimate or ShadowEstimate(),
        )


def _standing(run: _Run) -> tuple[str, str]:
    bound = f"its share of the daemon's CPU time, {run.budget.ratio:.0%}"
    if run.failed:
        return FAILED, run.failed
    if run.waits:
        return WAITS, run.waits
    if run.pair is None and run.rests:
        return RESTS, f"{bound}, is spent: it begins again once it has earned what that costs"
    if run.pair is None:
        return WAITS, "it begins with the next event"
    if run.budget.is_thin:
        return THIN, f"little is left of {bound}"
    return DECIDES, ""
