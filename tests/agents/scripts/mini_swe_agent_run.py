"""One mini-swe-agent run, told by JSON on the command line; JSON on the last line."""

import json
import os
import sys
import time

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
told = json.loads(sys.argv[1])

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402

if told.get("adapter", True):
    import engine_hooks.tools.mini_swe_agent  # noqa: F401

clock: list[dict[str, object]] = []


class TimedEnvironment(LocalEnvironment):
    """Notes the clock inside of what the adapter wraps."""

    def _check_finished(self, output: dict[str, object]) -> None:
        clock.append({"tool": "bash", "ended_ns": time.monotonic_ns()})
        super()._check_finished(output)


model = LitellmModel(
    model_name="openai/scripted",
    model_kwargs={"api_base": told["url"], "api_key": "none"},
    cost_tracking="ignore_errors",
)
environment = TimedEnvironment(cwd=told.get("workspace", ""), timeout=told.get("timeout_s", 30))
agent = DefaultAgent(model, environment, system_template="You work.", instance_template="{{task}}")
result = agent.run(told["message"])
print(json.dumps({"exit_status": result["exit_status"], "tools": clock}))
