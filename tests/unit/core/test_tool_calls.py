"""The forms in which replies call tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.tool_calls.calls import bash_block, called_name, tools_called


def fenced(script: str, language: str = "bash") -> str:
    return f"THOUGHT: let me see.\n\n```{language}\n{script}\n```\n"


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        (fenced("pytest -q"), ["pytest"]),
        # Continuum, appendix B
        (
            fenced('pytest -q && git add -A && git commit -m "fix: handle None case in parser"'),
            ["pytest", "git", "git"],
        ),
        (fenced("cd /repo && ls -la || echo gone"), ["ls", "echo"]),
        (fenced("git commit -m 'this && that || other' && ls"), ["git", "ls"]),
        (fenced('echo "a \\" && b" && ls'), ["echo", "ls"]),
        (fenced("cat <<'EOF' > a.py && python a.py\nx = 1 && 2\nEOF"), ["cat", "python"]),
        (fenced("FOO=1 BAR=two make test"), ["make"]),
        (fenced("FOO=1"), ["bash"]),
        (fenced("(cd src && make)"), ["make"]),
        (fenced("ls", "sh"), ["ls"]),
        (fenced(""), []),
        (fenced("&& ||"), []),
        (fenced("ls") + fenced("pwd"), []),  # mini-swe-agent asks for exactly one
        (fenced("ls", "python"), []),
        ("ls -la", []),
        ("", []),
    ],
)
def test_a_bash_block(reply: str, names: list[str]) -> None:
    assert list(bash_block(reply)) == names


TERMINAL_BENCH = """{
  "state_analysis": "The tests are failing with a NameError.",
  "commands": [
    {"keystrokes": "vim src/app/main.py\\n", "is_blocking": false, "timeout_sec": 2.0},
    {"keystrokes": "pytest -q\\n", "is_blocking": true, "timeout_sec": 30.0},
    {"keystrokes": ""}, {"keystrokes": 5}, "none"
  ],
  "is_task_complete": false
}"""


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        (TERMINAL_BENCH, ("vim", "pytest")),
        (f"```json\n{TERMINAL_BENCH}\n```", ("vim", "pytest")),
        ('{"commands": "ls"}', ()),
        ('{"commands": [', ()),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', ("get_weather",)),
        (
            'Both.\n<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"name": "b"}</tool_call>',
            ("a", "b"),
        ),
        (
            "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
            ("bash",),
        ),
        ("<tool_call>{broken</tool_call>", ()),
        ('<tool_call>{"name": 7}</tool_call>', ()),
        ('{"name": "search", "parameters": {"q": "x"}}', ("search",)),
        ('{"name": "Anna", "age": 7}', ()),
        ('<|python_tag|>{"name": "search", "parameters": {}}', ("search",)),
        ('<function=search>{"q": "x"}</function>', ("search",)),
        ('[get_weather(city="Paris, (France)"), now()]', ("get_weather", "now")),
        ('get_weather(city="Paris")', ("get_weather",)),
        ('<|python_tag|>brave_search.call(query="a\nb")', ("brave_search.call",)),
        ("[see above]", ()),
        ("Call f(x) to see it.", ()),
        ("f(x", ()),
        ("The answer is 42.", ()),
        ("", ()),
    ],
)
def test_every_form(reply: str, names: tuple[str, ...]) -> None:
    assert tools_called(reply) == names


def test_a_name_is_no_document_and_neither_is_a_reply() -> None:
    assert tools_called(fenced("x" * 200)) == ("bash",)
    assert tools_called(f'{{"name": "{"x" * 200}", "parameters": {{}}}}') == ()
    assert tools_called(fenced("ls") + " " * 200_001) == ()


@given(st.text(alphabet="abf()[]{}\"'`<>|&=\\\n :,", max_size=60) | st.text(max_size=40))
def test_whatever_a_model_says_is_read_without_an_error(text: str) -> None:
    for wrapped in (text, fenced(text), f"<tool_call>{text}</tool_call>", f"<|python_tag|>{text}", f"[{text}]"):
        assert all(wrapped and name for name in tools_called(wrapped))


@pytest.mark.parametrize(
    ("tool", "arguments", "name"),
    [
        ("bash", {"command": "cd /repo && timeout 60 pytest -q"}, "pytest"),
        ("Bash", {"command": "ls", "description": "x"}, "ls"),
        ("terminal", {"commands": ["cd x", "make"]}, "make"),
        ("shell", {"command": ["bash", "-lc", "cargo test"]}, "cargo"),
        ("shell", {"command": ["/usr/bin/zsh", "-lc", "cd x && cargo test"]}, "cargo"),
        ("shell", {"command": ["timeout", "60", "pytest", "tests/a b"]}, "pytest"),
        ("local_shell_call", {"action": {"type": "exec", "command": ["env", "A=1", "make"]}}, "make"),
        ("exec_command", {"cmd": "uv run --with x pytest -q", "yield_time_ms": 1000}, "pytest"),
        ("shell_command", {"command": "sudo -u x nice -n 5 stdbuf -oL make"}, "make"),
        ("run_in_terminal", {"command": "npx --yes jest", "isBackground": False}, "jest"),
        ("run_terminal_cmd", {"command": "poetry run time pytest"}, "pytest"),
        ("execute_command", {"command": "find . | xargs -n 1 wc", "requires_approval": False}, "find"),
        ("run_shell_command", {"command": "nohup bash -lc 'npm run dev' &"}, "npm"),
        ("developer__shell", {"command": "gtimeout -k 5 60 go test ./..."}, "go"),
        ("mcp__desktop__execute_command", {"command": "ls"}, "ls"),
        ("execute_bash", '{"command": "ls -la"}', "ls"),
        ("execute_bash", '{"command": "ls', "execute_bash"),
        ("bash", {"command": "$X"}, "bash"),
        ("bash", {"command": 7}, "bash"),
        ("bash", {"command": [7]}, "bash"),
        ("bash", {}, "bash"),
        ("bash", None, "bash"),
        ("str_replace_editor", {"command": "view"}, "str_replace_editor"),
    ],
)
def test_a_shell_s_call_counts_as_the_program_that_it_runs(tool: str, arguments: object, name: str) -> None:
    assert called_name(tool, arguments) == name
