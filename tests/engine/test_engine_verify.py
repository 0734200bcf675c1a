"""The plugin finds what it needs in each supported version, and its hooks are bound in the running engine."""

import importlib
import os
import subprocess
from pathlib import Path

from engine_scene import talking
from engine_server import ROOT, EngineServer
from engine_versions import KIND, on_every_version

from engine_hooks.engine.targets import Feature


@on_every_version
def test_every_target_is_found(engine_env: Path, engine_version: str) -> None:
    targets = importlib.import_module(f"engine_hooks.{KIND.name}.targets")
    command = [engine_env / "bin" / "python", "-W", "ignore", "-m", f"engine_hooks.{KIND.name}.verify"]
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said, version = done.stdout.splitlines(), KIND.number(engine_version)
    tested = "tested" if version in targets.SUPPORTED_VERSIONS else "not tested"
    (title,) = [line for line in said if line.startswith(f"{KIND.title} ")]  # an engine may say more
    assert title.startswith(f"{KIND.title} {version}: {tested} "), done.stdout + done.stderr
    found = [line.split()[2] for line in said if line.startswith("found ")]
    assert found == [target.path for target in targets.TARGETS], done.stdout
    wanted = {target.feature for target in targets.TARGETS}
    features = [feature for feature in Feature if feature in wanted]
    assert said[-len(features) :] == [f"{feature}: works here" for feature in features]
    assert done.returncode == 0


@on_every_version
async def test_every_hook_is_bound_in_the_running_engine(plugin_engine: EngineServer, engine_version: str) -> None:
    async with talking(plugin_engine) as client:
        health = await client.penstock()
        assert health["plugin"][KIND.name] == KIND.number(engine_version)
        assert [health["plugin"]["passive_because"], health["scheduler"].get("passive_because", "")] == ["", ""]
    said = [line for line in plugin_engine.log.splitlines() if "penstock: " in line]
    for ready in ("penstock: gate ready", "penstock: probe on"):
        assert len([line for line in said if ready in line]) == 1
    assert [line for line in said if "stays off" in line or "passive" in line or "the hook" in line] == []
