"""Why a turn computed again what had been computed before: the gate's word and the ledger's, cause by cause.

The engine is played: it tells how many tokens of the prompt it found, as an engine that has lost, or kept, what the
case says. Prompts are real bodies, measured as at a gate.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.causes import CHANGE_FIELDS, CLIENT_CAUSES, Cause
from controlplane.core.model.types import seconds
from controlplane.core.regret import CLIENT, RegretLedger, Verdict
from controlplane.gate.contexts import Contexts
from controlplane.gate.identity import identify
from controlplane.gate.sizing import measure
from controlplane.operate.misses import notes, rows

ENGINE, OTHER, RESTARTED = "n/engine/1", "n/engine-2/1", "n/engine/2"
HEADERS = [(b"user-agent", b"claude-cli/2.1.197 (external, cli)"), (b"x-session-id", b"p")]
CLIENT_NAME = "claude-cli 2.1.197"
BYTES_A_TOKEN = 4
PNG = "data:image/png;base64," + "A" * 4000

Body = dict[str, Any]


def text(seed: str, size: int) -> str:
    return (f"{seed} " * (size // len(seed) + 1))[:size]


def tool(name: str) -> Body:
    return {"name": name, "description": text(f"what {name} does", 400), "input_schema": {"type": "object"}}


def conversation() -> Body:
    """An agent's request: 6 tools, a system prompt of two blocks, 12 messages with results, reasoning, an image."""
    messages: list[Body] = [{"role": "user", "content": text("fix the bug", 800)}]
    for step in range(5):
        call = {"type": "tool_use", "id": f"t{step}", "name": "read", "input": {"path": f"/src/{step}.py"}}
        thought = {"type": "thinking", "thinking": text(f"thought {step}", 400), "signature": "s"}
        said = {"type": "text", "text": text(f"step {step}", 600)}
        messages.append({"role": "assistant", "content": [thought, said, call]})
        found = {"type": "tool_result", "tool_use_id": f"t{step}", "content": text(f"line {step}", 2000)}
        messages.append({"role": "user", "content": [found]})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    messages.append({"role": "user", "content": [{"type": "text", "text": text("look", 300)}, image]})
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.abc; cch=00001;"}
    return {
        "model": "m",
        "tools": [tool(name) for name in ("read", "write", "bash", "grep", "edit", "task")],
        "system": [
            billing,
            {"type": "text", "text": "It is 2026-11-30 10:00:00. " + text("You are an agent.", 6000)},
        ],
        "messages": messages,
    }


def gone_on(body: Body) -> Body:
    """The next request: the reply, and what the tool gave."""
    made = copy.deepcopy(body)
    reply = {"role": "assistant", "content": [{"type": "text", "text": text("reply", 400)}]}
    made["messages"] += [reply, {"role": "user", "content": text("next", 600)}]
    return made


def other_model(body: Body) -> None:
    body["model"] = "another"


def system_edited(body: Body) -> None:
    block = body["system"][1]
    block["text"] = block["text"][:3000] + "Be brief. " + block["text"][3000:]


def other_time(body: Body) -> None:
    body["system"][1]["text"] = body["system"][1]["text"].replace("10:00:00", "10:00:07")


def other_bill(body: Body) -> None:
    body["system"][0]["text"] = body["system"][0]["text"].replace("00001", "00002")


def more_tools(body: Body) -> None:
    body["tools"].append(tool("mcp"))


def fewer_tools(body: Body) -> None:
    del body["tools"][3]


def tools_turned(body: Body) -> None:
    body["tools"].reverse()


def tool_edited(body: Body) -> None:
    body["tools"][2]["input_schema"] = {"type": "object", "properties": {"path": {"type": "string"}}}


def message_edited(body: Body) -> None:
    body["messages"][0]["content"] = body["messages"][0]["content"].replace("bug", "flaw", 1)


def message_dropped(body: Body) -> None:
    del body["messages"][1:3]


def message_inserted(body: Body) -> None:
    body["messages"].insert(3, {"role": "user", "content": text("remember", 400)})


def compacted(body: Body) -> None:
    body["messages"][1:12] = [{"role": "user", "content": text("summary", 900)}]


def result_changed(body: Body) -> None:
    body["messages"][4]["content"][0]["content"] = "[old result cleared]"


def other_image(body: Body) -> None:
    body["messages"][11]["content"][1]["source"]["data"] = PNG[:-8] + "BBBBBBBB"


def reasoning_left_out(body: Body) -> None:
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["content"] = [part for part in message["content"] if part["type"] != "thinking"]


CLIENTS: dict[Cause, tuple[Callable[[Body], None], str]] = {
    Cause.MODEL: (other_model, "model"),
    Cause.SYSTEM: (system_edited, "system[1] bytes 2560-3072"),
    Cause.TOOLS_ADDED: (more_tools, "tools[6]"),
    Cause.TOOLS_REMOVED: (fewer_tools, "tools[3]"),
    Cause.TOOLS_REORDERED: (tools_turned, "tools[0]"),
    Cause.TOOLS: (tool_edited, "tools[2]"),
    Cause.EDITED: (message_edited, "messages[0] bytes 0-801"),
    Cause.DROPPED: (message_dropped, "messages[1] bytes 0-"),
    Cause.INSERTED: (message_inserted, "messages[3] bytes 0-400"),
    Cause.COMPACTED: (compacted, "messages[1] bytes 0-900"),
    Cause.RESULT: (result_changed, "messages[4] bytes 0-20"),
    Cause.IMAGE: (other_image, "messages[11] bytes 300-"),
    Cause.REASONING: (reasoning_left_out, "messages[1] bytes 0-"),
}
VOLATILE = {"a time": other_time, "billing header": other_bill}


class Scene:
    """One program behind a gate, whose first turn was computed and cached."""

    def __init__(self) -> None:
        self.contexts, self.verdicts = Contexts(), []  # type: tuple[Contexts, list[Verdict]]
        self.ledger = RegretLedger(self.verdicts.append)
        self.now_ns, self.turns, self.commands = seconds(100), 0, 0
        self.event(ev.PoolSampled(publisher=ENGINE, total_blocks=100_000, free_blocks=0, block_tokens=1))
        self.body = conversation()
        self.context_tokens = self.turn(self.body, cached=0)

    def event(self, event: ev.Event) -> None:
        self.ledger.event(event, self.now_ns)

    def decide(self, make: Callable[..., cmd.Command], **values: Any) -> None:
        self.commands += 1
        self.ledger.command(make(command_id=self.commands, program_id="p", **values), self.now_ns)

    def wait(self, duration_s: float) -> None:
        self.now_ns += seconds(duration_s)

    def turn(self, body: Body, *, cached: int, engine: str = ENGINE, again: int = 0, output: int = 100) -> int:
        """Run a turn; the tokens of its context. ``again``: as the engine threw it out while it ran."""
        self.turns += 1
        turn_id, prompt = f"t{self.turns}", measure(body)
        change = self.contexts.change("p", prompt, HEADERS)
        named = {"publisher": engine, "program_id": "p", "turn_id": turn_id}
        told = {name: getattr(change, name) for name in CHANGE_FIELDS}
        tokens = sum(prompt.outline.lengths) // BYTES_A_TOKEN
        self.event(ev.TurnSubmitted(**named, projected_blocks=tokens, **told))
        prefill_ns = seconds((tokens - cached) * 1e-3)
        self.now_ns += prefill_ns
        sizes = {"prompt_tokens": tokens, "cached_tokens": cached}
        self.event(ev.FirstToken(**named, **sizes, prefill_ns=prefill_ns))
        self.event(ev.TurnEnded(**named, **sizes, output_tokens=output, recomputed_tokens=again))
        self.contexts.remember("p", turn_id, prompt)
        return tokens + output

    @property
    def misses(self) -> list[Verdict]:
        return [each for each in self.verdicts if each.again_tokens and each.cause]


@pytest.mark.parametrize("cause", CLIENTS)
def test_a_clients_cause_is_named_with_its_place(cause: Cause) -> None:
    scene, (change, where) = Scene(), CLIENTS[cause]
    body = gone_on(scene.body)
    change(body)
    kept = scene.contexts.change("p", measure(body), HEADERS).kept_ratio * (scene.context_tokens - 100)
    scene.turn(body, cached=round(kept) // 16 * 16)
    (miss,) = scene.misses
    assert (miss.kind, miss.cause, miss.client) == (CLIENT, cause, CLIENT_NAME)
    assert miss.where.startswith(where)
    assert miss.cost_s > 0
    assert cause in CLIENT_CAUSES


@pytest.mark.parametrize("name", VOLATILE)
def test_a_head_that_changes_by_itself_is_named(name: str) -> None:
    scene = Scene()
    body = gone_on(scene.body)
    VOLATILE[name](body)
    scene.turn(body, cached=16)
    (miss,) = scene.misses
    assert (miss.cause, miss.where.partition(" (")[2]) == (Cause.VOLATILE, f"{name})")


def test_a_reply_that_came_back_in_another_form_is_the_clients() -> None:
    scene = Scene()
    scene.turn(scene.body, cached=scene.context_tokens - 100, output=900)
    body = gone_on(scene.body)
    body["messages"][-1]["content"] = text("next", 8000)
    scene.turn(body, cached=scene.context_tokens - 100)
    (miss,) = scene.misses
    assert (miss.cause, miss.again_tokens) == (Cause.REPLY, 900)


def pinned_for_too_short(scene: Scene) -> None:
    scene.decide(cmd.Retain, ttl_ns=seconds(1))
    scene.wait(5)


def nobody_decided(scene: Scene) -> None:
    scene.wait(5)


def pin_given_up(scene: Scene) -> None:
    scene.decide(cmd.Retain, ttl_ns=seconds(60))
    scene.event(ev.PinReclaimed(publisher=ENGINE, program_id="p"))
    scene.wait(5)


def paused(scene: Scene) -> None:
    scene.decide(cmd.Pause)
    scene.wait(5)


def discarded(scene: Scene) -> None:
    scene.decide(cmd.Discard)
    scene.wait(5)


SCHEDULERS: dict[Cause, tuple[Callable[[Scene], None], str]] = {
    Cause.TTL_SHORT: (pinned_for_too_short, ENGINE),
    Cause.PRESSURE: (nobody_decided, ENGINE),
    Cause.RECLAIMED: (pin_given_up, ENGINE),
    Cause.PAUSED: (paused, ENGINE),
    Cause.DISCARDED: (discarded, ENGINE),
    Cause.MOVED: (nobody_decided, OTHER),
    Cause.ENGINE_GONE: (nobody_decided, RESTARTED),
}


@pytest.mark.parametrize("cause", SCHEDULERS)
def test_a_schedulers_cause_is_named_and_no_clients(cause: Cause) -> None:
    scene, (befell, engine) = Scene(), SCHEDULERS[cause]
    befell(scene)
    scene.turn(gone_on(scene.body), cached=0, engine=engine)
    (miss,) = scene.misses
    assert (miss.kind == CLIENT, miss.cause, miss.client) == (False, cause, CLIENT_NAME)
    assert miss.again_tokens == scene.context_tokens
    assert cause not in CLIENT_CAUSES


def test_a_turn_that_was_thrown_out_is_the_schedulers() -> None:
    scene = Scene()
    scene.turn(gone_on(scene.body), cached=scene.context_tokens, again=700)
    (miss,) = scene.misses
    assert (miss.cause, miss.again_tokens) == (Cause.RETRACTED, 700)


def test_of_both_each_has_its_own_part() -> None:
    """The client changed a message in the middle, and the engine had lost even what was before it."""
    scene = Scene()
    scene.decide(cmd.Discard)
    body = gone_on(scene.body)
    result_changed(body)
    kept = round(scene.contexts.change("p", measure(body), HEADERS).kept_ratio * (scene.context_tokens - 100))
    scene.turn(body, cached=0)
    tokens = {each.cause: each.again_tokens for each in scene.misses}
    assert tokens == {Cause.DISCARDED: kept, Cause.RESULT: pytest.approx(scene.context_tokens - kept, rel=0.2)}


def test_who_goes_on_and_is_found_has_missed_nothing() -> None:
    scene = Scene()
    scene.turn(gone_on(scene.body), cached=scene.context_tokens)
    assert not scene.misses
    prefill = scene.ledger.sums.clients[CLIENT_NAME]
    assert (prefill.client_tokens, prefill.again) == (0, {})
    assert prefill.computed_tokens > 0


def test_an_interjection_does_not_hide_the_conversation() -> None:
    """A request for a title under the same id: the next turn is compared with the one that it goes on from."""
    scene = Scene()
    scene.turn({"model": "m", "messages": [{"role": "user", "content": text("a title", 500)}]}, cached=0)
    scene.turn(gone_on(scene.body), cached=scene.context_tokens)
    assert not scene.misses


@pytest.mark.parametrize("count", range(1, 20))
def test_digests_are_the_same_in_however_many_steps_a_prompt_is_folded(count: int) -> None:
    whole = measure({"messages": [{"role": "user", "content": str(number)} for number in range(count)]}).outline
    steps = whole.folded(1).folded(2).folded(3)
    assert steps.digests == whole.folded(3).digests
    assert steps.lengths == whole.folded(3).lengths


def test_what_is_remembered_of_a_program_is_bounded() -> None:
    """4 kB a program, however many messages; a difference is still found, in a wider range."""
    contexts, body = Contexts(), conversation()
    body["messages"] += [{"role": "user", "content": f"message {number}"} for number in range(3000)]
    identity = identify(HEADERS, body)
    contexts.remember(identity.program_id, "t1", measure(body))
    contexts.remember(identity.program_id, "t2", measure({"messages": [{"role": "user", "content": "a title"}]}))
    remembered = contexts._by_program[identity.program_id]
    assert sum(9 * len(each.outline.kinds) for each in remembered) <= 4096
    changed = gone_on(body)
    changed["messages"][2000]["content"] = "another"
    assert contexts.change(identity.program_id, measure(changed), HEADERS).change == Cause.EDITED
    assert not contexts.change(identity.program_id, measure(gone_on(body)), HEADERS).change


def test_an_operator_is_told_by_cause_and_by_client() -> None:
    scene = Scene()
    for number in range(3):
        body = gone_on(scene.body)
        body["system"][1]["text"] = body["system"][1]["text"].replace(f"10:00:0{number}", f"10:00:0{number + 1}")
        scene.turn(body, cached=0)
        scene.body = body
    by_cause, by_client = rows(scene.misses, "cause"), rows(scene.misses, "client")
    assert [(row.name, row.misses, row.share_ratio) for row in by_cause] == [("volatile_head", 3, 1.0)]
    assert [(row.name, row.client_tokens == row.tokens) for row in by_client] == [(CLIENT_NAME, True)]
    (told,) = notes(scene.misses)
    assert told.startswith(f"{CLIENT_NAME}: 9")
    assert told.endswith(
        "of its prefill is computed again, as its system prompt has a part that changes by itself."
    )
