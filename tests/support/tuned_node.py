"""A simulated node whose settings automatic advice changes: the daemon's own parts, in virtual time.

The laboratory is asked in this process and answers at once; all else is what a daemon has. The same experiment
gives the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from controlplane.config import Config, Source, show
from controlplane.config.changes import values
from controlplane.core.commands import Command
from controlplane.core.control import ControlRules
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError, EngineUnavailable
from controlplane.core.events import Event
from controlplane.core.presets import Preset
from controlplane.core.tuning import Answer, Ask
from controlplane.core.types import seconds
from controlplane.lab.experiment import Experiment
from controlplane.lab.simulate import simulate
from controlplane.lab.whatif.advice import advise
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays
from controlplane.lab.whatif.replays import Stretch as Asked
from controlplane.lab.workload.run import RunResult
from controlplane.shell import snapshot
from controlplane.shell.advise import AutoAdvice, SettingChange, answer_of
from controlplane.shell.reload import Reloader
from controlplane.shell.stretch import Stretch, join
from controlplane.wire.log import Header
from support.disks import PromptDisk

_LOOK_NS = seconds(1)


class TunedNode:
    """Runs an experiment under the configuration ``text``, whose file lies in ``folder``.

    ``at``: what an operator, or fate, does at a time in seconds. ``believes``: what is made of each answer.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        *,
        repeat: int = 2,
        at: Sequence[tuple[float, Callable[["TunedNode"], None]]] = (),
        believes: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> None:
        self.folder, self.file = folder, folder / "penstock.toml"
        self.file.write_text(text)
        source = Source(path=self.file)
        self.reloader = Reloader(source, source.read().for_a_daemon(), self._take_over)
        self.why_not = ""
        self.auto = AutoAdvice(self.reloader, self._stretch, lambda: self.why_not)
        self.changes: list[SettingChange] = []
        self.auto.heard.append(self.changes.append)
        self.controller = Controller(self.reloader.config.policies, self.reloader.config.control)
        self.asked = 0
        self.settings: list[tuple[float, dict[str, float]]] = []  # what was tuned, from which second on
        self._repeat, self._believes = repeat, believes
        self._at = [(seconds(at_s), do) for at_s, do in sorted(at, key=lambda each: each[0])]
        self._look_at_ns = self._now_ns = 0
        self._fed: list[tuple[int, Sequence[Event]]] = []
        self._decided: tuple[int, list[Command]] | None = None

    def run(self, asked: Experiment) -> RunResult:
        """The whole experiment."""
        config = self.reloader.config
        asked = replace(asked, preset=config.policies, rules=config.control)
        try:
            return simulate(asked, recorder=self, controller=self._make)
        finally:
            self.auto.close()

    def _make(self, preset: Preset, rules: ControlRules) -> Controller:
        self.controller = Controller(preset, rules)
        return self.controller

    def _take_over(self, config: Config) -> None:
        self.controller.reconfigure(config.policies, config.control, self._now_ns)
        tuned = {key: values(config)[key] for key in self.reloader.source.tuned}
        self.settings.append((self._now_ns / 1e9, tuned))

    def _stretch(self, length_ns: int) -> Stretch:
        return Stretch(self.folder / "stretch", length_ns, self._head, PromptDisk())

    def _head(self, now_ns: int) -> tuple[Header, str]:
        config = self.reloader.config
        header = Header(node="sim", preset=config.policies.name, config=show(config))
        taken = b"".join(
            snapshot.pieces(
                self.controller.state,
                preset=config.policies.name,
                stream_sequence=0,
                stream_created="",
                now_ns=now_ns,
                time_scale=1.0,
            )
        )
        return header, taken.decode()

    # What a recorder is told

    def event(self, event: Event, now_ns: int) -> None:
        if self._decided is not None:
            self._tell()
        self._fed.append((now_ns, [event]))

    def tick(self, now_ns: int) -> None:
        self._tell()
        self._now_ns = now_ns
        while self._at and self._at[0][0] <= now_ns:
            self._at.pop(0)[1](self)
        if now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + _LOOK_NS
            self._look(now_ns)
        self._decided = (now_ns, [])

    def command(self, command: Command, now_ns: int) -> None:
        if self._decided is not None:
            self._decided[1].append(command)

    def _tell(self) -> None:
        fed, self._fed = self._fed, []
        decided, self._decided = self._decided, None
        if fed or decided:
            self.auto.hear(fed, decided)

    def _look(self, now_ns: int) -> None:
        wanted = self.auto.look(now_ns)
        if wanted is not None:
            self.asked += 1
            self.auto.look(now_ns, self._believes(self._answer(*wanted)))

    def _answer(self, asked: Ask, stretch: Stretch) -> Answer:
        log, goal = self.folder / "asked.jsonl", self.auto.goal
        join(stretch.pieces(), log)
        try:
            replays = Replays(Asked(log=log, repeat=self._repeat))
            questions = [Question(settings=(f"{key}={value!r}",)) for key, value in asked.settings]
            found = advise(replays, goal, questions)
            said = found[0].answer.to_json() if found else {}
            shared = {key: said.get(key) for key in ("format", "stretch", "actual", "replayed")}
            told = shared | {"candidates": [each.to_json() for each in found]}
            return answer_of(msgspec.json.encode(told), goal, asked.number)
        except (ConfigError, EngineUnavailable) as error:
            return Answer(number=asked.number, reason=str(error))
