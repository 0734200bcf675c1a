"""What is asked how many agents it serves: whatever answers at a URL."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.core.model.errors import ConfigError
from controlplane.lab.capacity.slo import Point, Served, point, served
from controlplane.lab.capacity.systems import System, agents_of, programs_for
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.workload.arrivals import Closed

_FIRST = 4  # agents: nothing is known of what answers


def endpoints(named: Sequence[str], options: ReplayOptions, seeds: Sequence[int]) -> list[System]:
    """Each of ``NAME=URL``, asked with these options but for what it is asked. Raises ``ConfigError``."""
    found: list[System] = []
    for text in named:
        name, equals, url = text.partition("=")
        if not equals or "/" in name:  # an equals sign of the URL's own
            name, url = "", text
        asked = replace(options, url=url)
        name = name or asked.shown_url
        if any(name == other.name for other in found):
            raise ConfigError(f"url: {name!r} is named twice; give each its own name, as stock=URL", field="url")
        measure = _Endpoint(replace(asked, label=name), tuple(seeds))
        found.append(System(name=name, measure=measure, first=_FIRST, preset=name))
    return found


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Runs one seed after the other. Raises ``EngineUnavailable``; ``KeyboardInterrupt`` for a cut run."""

    options: ReplayOptions
    seeds: tuple[int, ...]

    def __call__(self, agents: int) -> Point:
        return point(agents, [self._run(agents, seed) for seed in self.seeds])

    def _run(self, agents: int, seed: int) -> Served:
        workload = self.options.workload
        drawn = workload.scale.apply(agents_of(workload, programs_for(agents, least=0), seed))
        label = f"{self.options.label}, {agents} agents"
        run = replay(replace(self.options, trace=drawn, arrival=Closed(agents), seed=seed, label=label))
        if run.cut:
            raise KeyboardInterrupt
        return served(run, agents)
