"""A mini-swe-agent with a shell. Penstock is one import.

python examples/agents/mini_swe_agent.py "Say which files are here."
"""

from endpoint import KEY, MODEL, URL, task
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

import engine_hooks.tools.mini_swe_agent  # noqa: F401  reports every run and command of this process

SYSTEM = "You work in a shell, a command at a time. When done: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

model = LitellmModel(
    model_name=f"openai/{MODEL}",
    model_kwargs={"api_base": URL, "api_key": KEY},
    cost_tracking="ignore_errors",
)
agent = DefaultAgent(model, LocalEnvironment(), system_template=SYSTEM, instance_template="{{task}}")
result = agent.run(task("Say which files are here."))
print(f"{result['exit_status']}: {result.get('submission', '')}")
