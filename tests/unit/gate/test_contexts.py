"""What a prompt shares with its program's earlier ones."""

from typing import Any

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.gate.contexts import Contexts
from controlplane.gate.identity import identify
from controlplane.gate.sizing import measure

IMAGE = {"type": "image_url", "image_url": {"url": "http://h/a.png"}}


def texts(*names: str, system: str = "s" * 400) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, *({"role": "user", "content": name * 100} for name in names)]


class Program:
    """Its turns reach the engine one after the other."""

    def __init__(self, contexts: Contexts | None = None, name: str = "p") -> None:
        self.contexts, self.name, self.turns = contexts or Contexts(), name, 0

    def asks(self, messages: list[dict[str, Any]], **more: Any) -> PromptSize:
        body = {"messages": messages, "program_id": self.name, **more}
        prompt = measure(body)
        size = self.contexts.size(identify([], body), prompt)
        self.turns += 1
        self.contexts.remember(self.name, f"{self.name}.{self.turns}", prompt)
        return size


def test_what_goes_on_is_new_behind_the_last_prompt() -> None:
    program = Program()
    first = program.asks(texts("a"))
    assert (first.prompt_bytes, first.continues, first.new_bytes) == (500, "", 500)
    second = program.asks([*texts("a", "b"), {"role": "user", "content": [IMAGE]}])
    assert (second.continues, second.shared_ratio, second.new_bytes) == ("p.1", 1.0, 100)
    assert second.image_tokens > 0
    third = program.asks([*texts("a", "b"), {"role": "user", "content": [IMAGE]}, *texts("c")[1:]])
    assert (third.continues, third.new_bytes, third.image_tokens) == ("p.2", 100, 0), "the image is known"


def test_a_compaction_and_a_rewind_share_a_part_and_a_retry_all() -> None:
    program = Program()
    program.asks(texts("a", "b", "c", "d"))
    again = program.asks(texts("a", "b", "c", "d"))
    assert (again.continues, again.shared_ratio, again.new_bytes) == ("p.1", 1.0, 0)
    rewound = program.asks(texts("a", "b", "x"))
    assert (rewound.continues, rewound.shared_ratio, rewound.new_bytes) == ("p.2", 0.75, 100)
    compacted = program.asks(texts("summary"))
    assert (compacted.shared_ratio < 0.6, compacted.new_bytes) == (True, 700)


def test_a_program_goes_back_and_forth_between_its_contexts() -> None:
    program = Program()
    program.asks(texts("a"))
    title = program.asks(texts("t", system="Give it a title."))
    assert (title.continues, title.new_bytes) == ("", title.prompt_bytes)
    assert program.asks(texts("a", "b")).continues == "p.1"
    assert program.asks(texts("t", "u", system="Give it a title.")).continues == "p.2"
    assert program.asks(texts("a", "b", "c")).continues == "p.3"


def test_other_programs_and_forgotten_ones_share_nothing() -> None:
    contexts = Contexts(most_parts=2 * 32 + 7)
    one, other = Program(contexts), Program(contexts, name="q")
    one.asks(texts("a"))
    assert other.asks(texts("a")).continues == ""
    assert one.asks(texts("a", "b")).continues == "p.1"
    other.asks(texts("a", "b", "c"))
    assert one.asks(texts("a", "b", "c")).continues == "", "it was used longest ago"


def test_what_the_server_has_stored_is_known_and_teaches_nothing() -> None:
    program = Program()
    program.asks(texts("a", "b"))
    body = {"input": texts("c")[1:], "program_id": "p", "previous_response_id": "resp_1"}
    size = program.contexts.size(identify([], body), measure(body))
    assert (size.continues, size.new_bytes) == ("p.1", 100) and 0.99 < size.shared_ratio < 1


def test_a_prompt_of_very_many_parts_makes_nobody_forgotten() -> None:
    contexts = Contexts()
    one, flood = Program(contexts), Program(contexts, name="q")
    one.asks(texts("a"))
    flood.asks([{}] * 100_000)
    assert one.asks(texts("a", "b")).continues == "p.1"


def test_a_plain_prompt_continues_too() -> None:
    contexts, text = Contexts(), "words " * 4000
    first, second = {"prompt": text, "program_id": "p"}, {"prompt": text + "more", "program_id": "p"}
    contexts.remember("p", "p.1", measure(first))
    size = contexts.size(identify([], second), measure(second))
    assert size.continues == "p.1" and size.shared_ratio > 0.8 and size.new_bytes < 4200
