"""An idle engine: commands and deadlines are seen at once, though there is no step to see them at."""

from engine_idle import ends, obeys
from engine_scene import Bus, play
from engine_server import EngineServer
from engine_versions import every_engine, on_every_version


@every_engine
@on_every_version
def test_an_idle_engine_obeys_at_once(plugin_engine: EngineServer, bus: Bus) -> None:
    bus.daemon()
    play(obeys(950), plugin_engine, bus)


@every_engine
@on_every_version
def test_a_pin_ends_on_an_idle_engine_when_its_time_is_over(plugin_engine: EngineServer, bus: Bus) -> None:
    bus.daemon()
    play(ends(951), plugin_engine, bus)
