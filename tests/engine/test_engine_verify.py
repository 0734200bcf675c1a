"""The plugin finds what it needs in each supported SGLang, and its hooks are bound in the running one."""

import os
import subprocess
from pathlib import Path

from engine_client import EngineClient
from engine_scene import talk
from engine_server import ROOT, EngineServer
from engine_versions import on_every_version

from engine_hooks.sglang.targets import SUPPORTED_VERSIONS, TARGETS, Feature

LACKING = {"0.5.17": {Feature.HOST}}  # its host memory is behind another tree


@on_every_version
def test_every_target_is_found(engine_env: Path, engine_version: str) -> None:
    command = [engine_env / "bin" / "python", "-W", "ignore", "-m", "engine_hooks.sglang.verify"]
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = done.stdout.splitlines()
    lacking = LACKING.get(engine_version, set())
    tested = "tested" if engine_version in SUPPORTED_VERSIONS else "not tested"
    assert said[0].startswith(f"SGLang {engine_version}: {tested} "), done.stdout + done.stderr
    needed = [target.paths[0] for target in TARGETS if target.feature not in lacking]
    found = [line.split()[2] for line in said if line.startswith("found ")]
    assert [path for path in needed if path not in found] == [], done.stdout
    assert said[-len(Feature) :] == [
        f"{feature}: {'stays off' if feature in lacking else 'works here'}" for feature in Feature
    ]
    assert done.returncode == bool(lacking)


@on_every_version
def test_every_hook_is_bound_in_the_running_engine(plugin_engine: EngineServer, engine_version: str) -> None:
    async def story(client: EngineClient) -> None:
        plugin = (await client.penstock())["plugin"]
        assert (plugin["sglang"], plugin["passive_because"]) == (engine_version, "")

    talk(story, plugin_engine)
    said = [line for line in plugin_engine.log.splitlines() if "penstock: " in line]
    for ready in ("penstock: gate ready", "penstock: probe on"):
        assert len([line for line in said if ready in line]) == 1
    expected = tuple(f"penstock: the {feature} stays off" for feature in LACKING.get(engine_version, ()))
    bad = [line for line in said if "stays off" in line or "penstock: passive" in line or "the hook" in line]
    assert [line for line in bad if not any(known in line for known in expected)] == []
