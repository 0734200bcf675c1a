"""SkyRL's asynchronous trainer with nothing to train, told by JSON on the command line; JSON on the last line.

Its loop is real, and so are its generator, client and environment: groups of samples with several turns each, and a
weight sync after each step. Its own ``FullyAsyncTrainerSim`` stands where a model would learn.
"""

import asyncio
import json
import sys
import tempfile
import time
import typing
from pathlib import Path

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # before Python 3.12 pydantic, which SkyRL uses, takes no other

import skyrl_gym
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train import fully_async_trainer_sim as simulated
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset.dataset import PromptDataset
from skyrl.train.generators import SkyRLGymGenerator
from skyrl.train.utils.tracking import Tracking
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools.core import ToolGroup, tool
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import engine_hooks.tools.skyrl  # noqa: F401
from engine_hooks.tools.shared import reporter

told = json.loads(sys.argv[1])
clock: list[dict[str, object]] = []


class Looks(ToolGroup):
    """``until``: at least until weights of that version are there."""

    def __init__(self, until: int) -> None:
        super().__init__("looks")
        self._until = until

    @tool
    def look(self, _at: str) -> str:
        began_ns = time.monotonic_ns()
        time.sleep(told["tool_s"])
        while client.weight_version < self._until:
            time.sleep(0.01)
        clock.append({"tool": "look", "began_ns": began_ns, "ended_ns": time.monotonic_ns()})
        return "w7 w8"


class Lookout(BaseTextEnv):
    """Looks at whatever the model says, until the last turn."""

    def __init__(self, env_config: object = None, extras: dict[str, int] | None = None) -> None:
        super().__init__()
        self.max_turns = (extras or {})["max_turns"]
        self.init_tool_groups([Looks((extras or {})["until"])])

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        seen = self._execute_tool("looks", "look", [action])
        done = self.turns >= self.max_turns
        said = [] if done else [{"role": "user", "content": seen}]
        return BaseTextEnvStepOutput(observations=said, reward=float(done), done=done, metadata={})


class Dispatch(simulated._SimDispatch):
    """What SkyRL's own, of 0.4.0, lacks of the methods that its trainer calls."""

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def finalize_pending_saves(self, _model: str) -> None:
        """There are none."""


def settings() -> SkyRLTrainConfig:
    return SkyRLTrainConfig.from_cli_overrides(
        {
            "trainer.fully_async.enabled": True,
            "trainer.fully_async.simulate_training": True,
            "trainer.fully_async.simulate_training_step_seconds": 0.1,
            "trainer.fully_async.max_staleness_steps": 1,
            "trainer.fully_async.num_parallel_generation_workers": 2,
            "trainer.train_batch_size": 1,
            "trainer.policy_mini_batch_size": 1,
            "trainer.algorithm.policy_loss_type": "rollout_is",
            "trainer.placement.colocate_all": False,
            "trainer.enable_ray_gpu_monitor": False,
            "trainer.resume_mode": "none",
            "trainer.logger": "console",
            **dict.fromkeys(("trainer.eval_interval", "trainer.ckpt_interval", "trainer.hf_save_interval"), -1),
            "generator.inference_engine.enable_ray_prometheus_stats": False,
            "generator.n_samples_per_prompt": told["samples"],
            "generator.max_turns": told["turns"],
            "generator.sampling_params.max_generate_length": 8,
            "environment.env_class": "lookout",
            "data.dataloader.num_workers": 0,
        }
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token."""
    words = {word: at for at, word in enumerate(("<unk>", "<s>", "</s>", *(f"w{at}" for at in range(3, 2048))))}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>", pad_token="</s>")
    tokens.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return tokens


words = tokenizer()
client = RemoteInferenceClient(
    proxy_url=told["url"],
    server_urls=told["servers"],  # whom it pauses
    data_parallel_size=1,
    model_name=told["model"],
    tokenizer=words,
)


def main() -> None:
    skyrl_gym.register(id="lookout", entry_point=Lookout)
    simulated._SimDispatch = Dispatch
    config = settings()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        prompts = [[{"role": "user", "content": f"w{at} " * 200}] for at in range(100, 100 + told["prompts"])]
        rows = [{"prompt": each, "until": 0 if at else told["until"]} for at, each in enumerate(prompts)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = PromptDataset([str(file)], words, max_prompt_length=512, num_workers=1)
    trainer = simulated.FullyAsyncTrainerSim(
        cfg=config,
        tracker=Tracking("penstock", "rollouts", "console", config),
        tokenizer=words,
        train_dataset=data,
        inference_engine_client=client,
        generator=SkyRLGymGenerator(config.generator, config.environment.skyrl_gym, client, words),
    )
    asyncio.run(trainer.train())
    reporter().close()
    print(json.dumps({"syncs": client.weight_version, "tools": clock}))


main()
