"""The program that a shell command spends its time in, and nothing else of it."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.tool_calls.shell_commands import command_name, command_names


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("pytest -q", "pytest"),
        ("cd /repo && pytest -q", "pytest"),
        ("cd /repo; export A=1; source venv/bin/activate && set -e && make", "make"),
        (". venv/bin/activate\npytest", "pytest"),
        ("A=1 B='two words' make test", "make"),
        ("A=$(date +%s) ls", "ls"),
        ("/usr/bin/env -i -u HOME A=b python x.py", "python"),
        ("timeout 60 pytest", "pytest"),
        ("timeout -k 5 --signal=KILL 60 pytest", "pytest"),
        ("timeout --preserve-status -s KILL 1m nice -n 10 make", "make"),
        ("sudo apt-get install -y x", "apt-get"),
        ("sudo -u www -E A=b apt-get update", "apt-get"),
        ('bash -c "pytest -q"', "pytest"),
        ("bash -lc 'cd /repo && timeout 9 pytest'", "pytest"),
        ("bash -eo pipefail -c 'make all'", "make"),
        ("sh -c \"bash -c 'ls'\"", "ls"),
        ("bash run.sh -c x", "bash"),
        ("eval 'make all'", "make"),
        ("nohup python train.py > log 2>&1 &", "python"),
        ("time make", "make"),
        ("time -p make", "make"),
        ("exec cargo build", "cargo"),
        ("command -v cargo", "command"),
        ("find . -name '*.py' | xargs grep x", "find"),
        ("xargs -n 1 -P4 -I {} grep x < list", "grep"),
        ("stdbuf -oL -e 0 ./run_tests.sh", "run_tests.sh"),
        ("python -m pytest tests", "pytest"),
        ("python3.11 -W error -m unittest.main", "unittest"),
        ("python -m our_own.secret", "python"),
        ("python x.py -m pytest", "python"),
        ("uv run pytest", "pytest"),
        ("uv --directory x run --with y -p 3.12 python -m pytest", "pytest"),
        ("uv pip install x", "uv"),
        ("poetry run python -m mypy", "mypy"),
        ("npx -y jest", "jest"),
        ("npm test", "npm"),
        ("conda run -n env pytest", "pytest"),
        ("cat x | grep y", "cat"),
        ("cd x | cat", "cd"),
        ("cat x |\n grep y; make", "cat"),
        ("echo start && make", "make"),
        ("echo only", "echo"),
        ("cd only", "cd"),
        ("(cd src && make)", "make"),
        ("if [ -f x ]; then make; fi", "make"),
        ("for f in *.c; do gcc -c $f; done", "gcc"),
        ("while true; do sleep 1; done", "sleep"),
        ("! grep x y", "grep"),
        ("{ ls; }", "ls"),
        ("# ls\nmake # it", "make"),
        ("2>/dev/null ls", "ls"),
        ("ls >out 2>&1", "ls"),
        ("&>/dev/null ls", "ls"),
        ("diff <(ls a) <(ls b)", "diff"),
        ("cat > x.py <<'EOF'\nimport os; rm -rf\nEOF\npython x.py", "cat"),
        ("cd x \\\n && ls", "ls"),
        ("$PYTHON -m pytest", ""),
        ("sudo -- make", "make"),
        ("sudo -n", "sudo"),
        ("cat <<  EOF\nls\nEOF\nmake", "cat"),
        ("make $(ls 'a)b' (c) \\) d)", "make"),
        ("make $(ls 'never closed", "make"),
        ("git commit -m \"$(cat <<'EOF'\nIt can't (yet\nEOF\n)\" && make", "git"),
        ('A=$(dirname "$0") B=`pwd` make', "make"),
        ("[ $# -gt 0 ] || make", "make"),
        ("A=1", ""),
        ("'", ""),
        ("", ""),
    ],
)
def test_the_name_is_the_program_s_that_takes_the_time(script: str, name: str) -> None:
    assert command_name(script) == name


def test_what_a_here_document_holds_is_no_command() -> None:
    assert command_names("cat <<-A <<B > x && make\n\tmake && ls\n\tA\nls\nB\npython x.py") == [
        "cat",
        "make",
        "python",
    ]
    assert command_names("cat <<EOF\nls && ls") == ["cat"]


def test_only_the_beginning_of_a_long_script_is_read() -> None:
    assert command_names("ls;" * 100_000) == ["ls"] * 64
    assert command_name("cd x;" * 10_000 + "make") == "cd"
    assert command_name("bash -c '" * 4000) in ("", "bash")


SECRET = "hunter2"
NAMES = string.ascii_letters + string.digits + "_.+-[:"


@given(st.text(alphabet="ab1 \t\n'\"`$(){}[]<>|&;\\#=-c", max_size=80) | st.text(max_size=40))
def test_whatever_it_is_given_it_answers_with_names(script: str) -> None:
    assert all(0 < len(name) <= 64 and set(name) <= set(NAMES) for name in command_names(script))
    assert command_name(script) in ("", *command_names(script))


@given(
    st.sampled_from(["curl -H", "A=1 make", "timeout 5 git clone", "bash -c 'ls", "python -m pytest", "x <<E\n"])
)
def test_arguments_stay_where_they_are(command: str) -> None:
    assert all(
        SECRET not in name for name in command_names(f"TOKEN={SECRET} {command} {SECRET} '{SECRET}' >{SECRET}")
    )
