"""How far the estimate of a held turn is from what an engine counts: by kind of agent, engine's model and turn.

Two days (of model time) of a node as it is: coding agents over this repository's files, who compact and ask for
titles, agents that paste base64, a chat in Chinese, plain completions, voices, pictures, and a health check every
ten seconds. Each request is measured as the gate does it and held; each prompt is counted by a real tokenizer
(Tekken, of the package mistral-common), its images and recordings by the prices of two models. No budget on time.
"""

import argparse
import base64
import io
import itertools
import json
import os
import random
import statistics
import struct
import sys
import wave
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from controlplane.core import events as ev
from controlplane.core.ledger import Ledger
from controlplane.core.prompt_size import SIZE_FIELDS
from controlplane.core.types import seconds
from controlplane.gate.contexts import Contexts
from controlplane.gate.identity import identify
from controlplane.gate.sizing import measure

ROOT = Path(__file__).resolve().parents[1]
MESSAGE_TOKENS = 5  # that a template puts around each message
HOURS = 48
Body = dict[str, Any]


@cache
def tokenizer() -> Callable[[str], int]:
    try:
        import mistral_common
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    except ImportError:
        sys.exit("this needs a tokenizer: pip install mistral-common")
    files = (Path(mistral_common.__file__).parent / "data").glob("tekken*.json")
    made = Tekkenizer.from_file(sorted(files)[0])
    return lambda text: len(made.encode(text, bos=False, eos=False))


@cache
def text_tokens(text: str) -> int:
    return tokenizer()(text)


@cache
def repository(pattern: str) -> str:
    return "\n".join(path.read_text() for path in sorted(ROOT.glob(pattern)))


def chinese(rng: random.Random, count: int) -> str:
    common = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出"
    return "".join(rng.choice(common) for _ in range(count // 3))


def part_of(text: str, rng: random.Random, count: int) -> str:
    at = rng.randrange(max(1, len(text) - count))
    return text[at : at + count]


def png(width: int, height: int) -> str:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", os.urandom(50_000))).decode()


def wav(duration_s: int) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setparams((1, 2, 16_000, 0, "NONE", ""))
        recording.writeframes(bytes(32_000 * duration_s))
    return base64.b64encode(file.getvalue()).decode()


@dataclass
class Node:
    """A gate and a ledger; ``errors`` by (who, which turn)."""

    ledger: Ledger = field(default_factory=Ledger)
    contexts: Contexts = field(default_factory=Contexts)
    errors: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    now_ns: int = 0
    serial: Iterator[int] = field(default_factory=itertools.count)

    def turn(self, who: str, which: str, name: str, body: Body, true_tokens: int) -> None:
        """One request, held and then served."""
        self.now_ns += seconds(1)
        identity = identify([(b"x-session-id", name.encode())] if name else [], body)
        prompt, turn_id = measure(body), f"t{next(self.serial)}"
        size = self.contexts.size(identity, prompt)
        told = {field: getattr(size, field) for field in SIZE_FIELDS}
        program = identity.program_id
        self.ledger.apply(ev.TurnQueued(program_id=program, turn_id=turn_id, **told), self.now_ns)
        blocks = self.ledger.gates.held[turn_id].blocks - self.ledger.estimates.output.value
        if not identity.anonymous:
            self.contexts.remember(program, turn_id, prompt)
        self.errors[who, which].append(abs(blocks / true_tokens - 1))
        ids = {"program_id": program, "turn_id": turn_id}
        self.ledger.apply(ev.TurnSubmitted(projected_blocks=1, prompt_tokens=true_tokens, **ids), self.now_ns)
        self.ledger.apply(ev.TurnEnded(prompt_tokens=true_tokens, output_tokens=50, **ids), self.now_ns)


def counted(body: Body, media_tokens: int = 0) -> int:
    """The prompt's tokens: its messages in a template, its tools as JSON."""
    tokens = 3 + media_tokens
    if body.get("tools"):
        tokens += text_tokens(json.dumps(body["tools"])) + 40
    if isinstance(body.get("prompt"), str):
        return tokens + text_tokens(body["prompt"])
    for message in body["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        tokens += MESSAGE_TOKENS + sum(text_tokens(part["text"]) for part in parts if "text" in part)
    return tokens


TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": part_of(repository("README.md"), random.Random(name), 300),
        "parameters": {"type": "object", "properties": {"command": {"type": "string", "description": "run it"}}}}}
    for name in ("bash", "edit", "read", "grep", "plan")
]  # fmt: skip


def which(turn: int) -> str:
    return "first" if not turn else "2 to 5" if turn < 5 else "later"


def coding(node: Node, name: str, rng: random.Random) -> Iterator[None]:
    head = {"role": "system", "content": part_of(repository("CONTRIBUTING.md"), random.Random(0), 5000)}
    messages = [head, {"role": "user", "content": part_of(repository("docs/how-to/*.md"), rng, 2000)}]
    for turn in range(rng.randint(8, 30)):
        body = {"model": "m", "tools": TOOLS, "messages": messages}
        node.turn("coding", which(turn), name, body, counted(body))
        yield
        if turn == 2:
            title = {
                "model": "m",
                "messages": [{"role": "user", "content": f"Give a title: {messages[1]['content']}"}],
            }
            node.turn("coding", "title", name, title, counted(title))
        if turn == 12:
            summary = part_of(repository("docs/explanation/*.md"), rng, 3000)
            messages = [head, {"role": "user", "content": summary}]
            body = {"model": "m", "tools": TOOLS, "messages": messages}
            node.turn("coding", "compacted", name, body, counted(body))
        source = rng.choice(["controlplane/**/*.py", "docs/**/*.md", "deploy/**/*.json", "tests/unit/**/*.py"])
        messages = [
            *messages,
            {
                "role": "assistant",
                "content": part_of(repository("docs/explanation/*.md"), rng, rng.randint(100, 900)),
            },
            {"role": "tool", "content": part_of(repository(source), rng, int(rng.lognormvariate(7.5, 1.0)))},
        ]


def chat(who: str, text: Callable[[random.Random, int], str]) -> Callable[..., Iterator[None]]:
    def run(node: Node, name: str, rng: random.Random) -> Iterator[None]:
        messages: list[Body] = []
        for turn in range(8):
            messages = [*messages, {"role": "user", "content": text(rng, rng.randint(500, 8000))}]
            body = {"model": "m", "messages": messages}
            node.turn(who, which(turn), name, body, counted(body))
            messages = [*messages, {"role": "assistant", "content": text(rng, 400)}]
            yield

    return run


def completions(node: Node, name: str, rng: random.Random) -> Iterator[None]:
    prompt = part_of(repository("controlplane/**/*.py"), rng, 6000)
    for turn in range(8):
        body = {"model": "m", "prompt": prompt}
        node.turn("completions", which(turn), name, body, counted(body))
        prompt += part_of(repository("controlplane/**/*.py"), rng, rng.randint(500, 5000))
        yield


def media(who: str, model: str) -> Callable[..., Iterator[None]]:
    def run(node: Node, name: str, rng: random.Random) -> Iterator[None]:
        messages: list[Body] = []
        media_tokens = 0
        for turn in range(6):
            if who == "voice":
                duration_s = rng.randint(2, 60)
                part = {"type": "input_audio", "input_audio": {"data": wav(duration_s), "format": "wav"}}
                media_tokens += round(duration_s * 12.5)
            else:
                width, height = rng.randint(300, 1600), rng.randint(300, 1600)
                url = f"data:image/png;base64,{png(width, height)}"
                part = {"type": "image_url", "image_url": {"url": url}}
                media_tokens += 576 if model == "fixed" else round(width * height / 28 / 28) + 2
            text = part_of(repository("docs/how-to/*.md"), rng, 200)
            messages = [*messages, {"role": "user", "content": [{"type": "text", "text": text}, part]}]
            body = {"model": model, "messages": messages}
            node.turn(f"{who}, {model}", which(turn), name, body, counted(body, media_tokens))
            messages = [*messages, {"role": "assistant", "content": text}]
            yield

    return run


KINDS: dict[str, Callable[..., Iterator[None]]] = {
    "coding": coding,
    "base64": chat("pastes base64", lambda rng, count: base64.b64encode(rng.randbytes(count * 3 // 4)).decode()),
    "chinese": chat("Chinese", chinese),
    "completions": completions,
    "voice": media("voice", "m"),
    "image": media("images", "patches"),
    "image-fixed": media("images", "fixed"),
}


def play(seed: int, programs: int) -> Node:
    node, rng = Node(), random.Random(seed)
    live = [
        KINDS[kind](node, f"{kind}-{number}", random.Random(f"{seed}/{kind}/{number}"))
        for number in range(programs)
        for kind in KINDS
    ]
    checks = HOURS * 360
    turns_between = max(1, checks // (programs * len(KINDS) * 10))
    health = {"model": "m", "messages": [{"role": "user", "content": "ping"}]}
    while live:
        for _ in range(turns_between):
            node.turn("health check", "", "", health, counted(health))
        one = rng.choice(live[:60])
        if next(one, "over") == "over":
            live.remove(one)
    return node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=25, help="of each kind (25)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    node = play(options.seed, options.programs)
    rows = []
    for (who, turn), errors in sorted(node.errors.items()):
        errors.sort()
        at = [errors[min(len(errors) - 1, int(len(errors) * share))] for share in (0.9, 0.99)]
        rows.append({"who": who, "turn": turn, "turns": len(errors), "median": statistics.median(errors),
                     "p90": at[0], "p99": at[1]})  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'who':<20}{'turn':<11}{'turns':>7}{'median':>9}{'p90':>8}{'p99':>8}   error of the estimate")
    for row in rows:
        shares = "".join(f"{row[name]:>8.1%}" for name in ("median", "p90", "p99"))
        print(f"{row['who']:<20}{row['turn']:<11}{row['turns']:>7} {shares}")


if __name__ == "__main__":
    main()
