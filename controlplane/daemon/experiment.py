"""The experiment of a daemon: it hears what the controller hears, and puts each slice's preset in force.

What it knows is part of the controller's state: a snapshot keeps it, and a daemon that stands by has it too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from controlplane.config import Config
from controlplane.core.experiment import Estimate, Switchback
from controlplane.core.model.events import Event
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.reload import Reloader

MEASURES = "measures"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStatus:
    """One look at the experiment. Times are the daemon's clock's."""

    preset: str  # whose gain is measured
    standing: str  # measures; or why it ended: gain, loss or length
    is_stock: bool  # whether the stock policies are in force now
    began_ns: int
    slice_ends_ns: int  # 0: it has ended
    ended_ns: int  # 0: it goes on
    since_ns: int  # where it ended for a loss: since when that was; else 0
    blocks: int
    left_out: int  # blocks with too few programs, or in which nobody decided for a while
    programs: int
    censored: int  # of these: they took longer than the washout, and count as that long
    changes: tuple[Estimate, ...]
    absent: int = 0  # of the blocks left out: nobody decided for a while


class Experiment:
    """What the configuration asks for, on the controller's ``state``; nothing where it asks for none."""

    def __init__(self, reloader: Reloader, state: Callable[[], ControllerState]) -> None:
        self._reloader, self._state = reloader, state
        self._config: Config | None = None  # which ``_key`` is of
        self._key = ""
        self._switchback: Switchback | None = None
        self._log = logger("experiment")

    def event(self, event: Event, now_ns: int) -> None:
        if (switchback := self._current(now_ns)) is not None:
            switchback.event(event, now_ns)

    def follow(self, now_ns: int) -> None:
        """Time passes, and somebody decides: this daemon, or the one that leads."""
        if (switchback := self._current(now_ns)) is None:
            return
        before = switchback.state.ended
        switchback.tick(now_ns)
        if switchback.state.ended != before:
            found = {each.name: (each.value, each.low, each.high) for each in switchback.estimates()}
            self._log.warning(
                "ended", why=switchback.state.ended, preset=self._reloader.resolved.config.preset, **found
            )

    def decide(self, now_ns: int) -> None:
        """Have what this slice asks for in force before anything is decided in it; after an error, the preset."""
        is_stock = False
        try:
            self.follow(now_ns)
            switchback = self._current(now_ns)
            is_stock = switchback is not None and switchback.is_stock(now_ns)
        finally:
            self._reloader.put_stock_in_force(is_stock)

    def away(self, now_ns: int, for_ns: int) -> None:
        """This daemon was frozen for so long, which its clock did not count."""
        if (switchback := self._current(now_ns)) is not None:
            switchback.away(now_ns, for_ns)

    def status(self, now_ns: int) -> ExperimentStatus | None:
        """How it stands; None if none is wanted."""
        switchback = self._current(now_ns)
        if switchback is None:
            return None
        state, slices = switchback.state, switchback.slices
        return ExperimentStatus(
            preset=self._reloader.resolved.config.preset,
            standing=state.ended or MEASURES,
            is_stock=self._reloader.config.is_stock,
            began_ns=state.began_ns,
            slice_ends_ns=0 if state.ended else (slices.at(now_ns) + 1) * slices.length_ns,
            ended_ns=state.ended_ns,
            since_ns=state.since_ns,
            blocks=len(state.blocks),
            left_out=state.left_out,
            programs=sum(each.programs for each in state.blocks),
            censored=sum(each.censored for each in state.blocks),
            changes=switchback.estimates(),
            absent=state.absent,
        )

    def _current(self, now_ns: int) -> Switchback | None:
        """The one of this configuration, anew where the last was of another one."""
        config, state = self._reloader.resolved.config, self._state()
        if not config.experiment.on or config.is_stock:
            return None
        if self._config is not config:
            self._config, self._key = config, _key_of(config)
        found = self._switchback
        if found is None or found.state is not state.experiment or found.slices.key != self._key:
            if state.experiment.key == self._key:
                found = Switchback(config.experiment, self._key, state.experiment)
            else:
                found = Switchback.begin(config.experiment, self._key, now_ns)
                state.experiment = found.state
            self._switchback = found
        return found


def _key_of(config: Config) -> str:
    """All that an estimate is of, and the node, so that nodes draw different slices."""
    of = repr((config.node, config.policies, config.control, config.experiment))
    return blake2b(of.encode(), digest_size=8).hexdigest()
