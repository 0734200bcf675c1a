"""What it costs a gate to tell why a prefix was missed: digests of a 128,000-token prompt, by component.

The budgets are 1 ms of CPU time beside measuring the prompt's size, which gates do anyway, and 4 kB a program.

    .venv/bin/python bench/prompt_outline.py [--tokens N] [--messages N] [--json]

The prompt is an agent's: 25 tools, a system prompt of 20 kB with a time in it, and messages with results of
tools and reasoning. The least of many CPU times is told. ``outline_ms``: a prompt measured with its components,
less the same measured as one part for all that stands before the messages and one a message. ``difference_ms``:
beside an earlier one whose head differs. ``remembered_bytes``: of the earlier one, and of an aside.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.gate.contexts import Contexts
from controlplane.gate.outlines import difference
from controlplane.gate.sizing import _HEAD, _turns, _Walk, measure

BUDGET_MS, BUDGET_BYTES = 1.0, 4096
BYTES_A_TOKEN = 4
REPETITIONS = 200


def text(seed: str, size: int) -> str:
    """Words, of which no two texts begin with the same."""
    return " ".join(f"{seed}{number}" for number in range(size // (len(seed) + 4) + 1))[:size]


def prompt(tokens: int, messages: int, second: int) -> bytes:
    """A request to Anthropic's API, as it comes."""
    schema = {f"p{number}": {"type": "string", "description": text("what it is ", 80)} for number in range(5)}
    tools = [
        {"name": f"t{number}", "description": text(f"{number} does ", 500), "input_schema": {"properties": schema}}
        for number in range(25)
    ]
    system = [{"type": "text", "text": f"Now: 2026-11-30T10:00:{second:02}Z\n{text('be good ', 20_000)}"}]
    size = (tokens * BYTES_A_TOKEN - 45_000) // messages
    said: list[dict[str, Any]] = []
    for number in range(messages):
        if number % 2:
            thought = {"type": "thinking", "thinking": text(f"thought{number} ", size // 4)}
            call = {"type": "tool_use", "id": f"c{number}", "name": "t1", "input": {"a": text("do ", size // 4)}}
            content = [thought, {"type": "text", "text": text(f"step{number} ", size // 2)}, call]
            said.append({"role": "assistant", "content": content})
        else:
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text(f"line{number} ", size)}
            said.append({"role": "user", "content": [result]})
    return msgspec.json.encode({"model": "m", "tools": tools, "system": system, "messages": said})


def whole(body: dict[str, Any]) -> None:
    """The same text, measured without its components."""
    walk = _Walk("m")
    walk.part([(name, body[name]) for name in _HEAD if name in body])
    for part in _turns(body):
        walk.part([part])


def least_ms(data: bytes, measured: Callable[[dict[str, Any]], object]) -> float:
    """CPU time; each body is parsed anew, as strings remember their hashes."""
    times = []
    for _ in range(REPETITIONS):
        body = msgspec.json.decode(data)
        began = time.process_time_ns()
        measured(body)
        times.append(time.process_time_ns() - began)
    return min(times) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128_000)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data, later = (prompt(options.tokens, options.messages, second) for second in (1, 2))
    before, now = (measure(msgspec.json.decode(each)) for each in (data, later))
    contexts = Contexts()
    contexts.remember("p", "1", before)
    contexts.remember("p", "2", measure({"messages": [{"role": "user", "content": "a title"}]}))
    outlines = [each.outline for each in contexts._by_program["p"]]
    sizes = [sys.getsizeof(part) for each in outlines for part in (each.kinds, each.digests, each.lengths)]
    measure_ms, whole_ms = least_ms(data, measure), least_ms(data, whole)
    difference_ms = least_ms(data, lambda _: difference(outlines[0], now.outline))
    found = {
        "bytes": len(data),
        "measure_ms": round(measure_ms, 2),
        "outline_ms": round(measure_ms - whole_ms, 2),
        "difference_ms": round(difference_ms, 2),
        "change": difference(outlines[0], now.outline).change_at,
        "remembered_bytes": sum(sizes),
    }
    met = measure_ms - whole_ms + difference_ms <= BUDGET_MS and sum(sizes) <= BUDGET_BYTES
    print(json.dumps(found) if options.json else "\n".join(f"{name:17} {value}" for name, value in found.items()))
    print(f"budgets: {BUDGET_MS} ms and {BUDGET_BYTES:,} bytes: {'met' if met else 'missed'}", file=sys.stderr)
    sys.exit(not met)


if __name__ == "__main__":
    main()
