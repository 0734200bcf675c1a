"""What a shell script runs: the names of its programs, and of these the one that takes the time.

Only names leave this file, never an argument, a variable's value or a path. A name is what a program goes by in
``PATH``; a module of Python's is one where it is a well-known program (``python -m pytest``). What stands around a
command and takes no time itself (``timeout 60``, ``env A=b``, ``sudo -u x``, ``uv run``) is looked through, and so
is a script in quotes (``bash -c "..."``). Any text is read without an error: what follows a quote that is never
closed is left out.
"""

import re
import shlex
from collections.abc import Iterator
from itertools import islice

_MOST_CHARACTERS = 16_384  # of a script: what it begins with names it
_MOST_COMMANDS = 64
_SIGNS = ";&|()<>\n"
_DEEPEST = 4  # scripts in scripts
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,63}|\[\[?|[.:]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\1")
_INNER = re.compile(  # $(...), <(...) and `...`, which are words of other commands
    r"[$<>]\((?:[^()'\"]|'[^']*'|\"(?:\\.|[^\"\\])*\"|\([^()]*\))*\)|`(?:\\.|[^`\\])*`"
)
_NUMBER = re.compile(r"(?<![^\s;&|()])\d+(?=[<>])")  # of what is redirected
_PYTHON_MODULE = re.compile(r"(?:python|pypy)[0-9.]*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They change the shell or test something, and are not waited for.
_QUICK = _words(
    "cd pushd popd dirs source . export set unset alias unalias shopt ulimit umask declare local readonly typeset"
    " trap true false : [ [[ test shift return exit break continue wait hash"
)
_TALK = frozenset({"echo", "printf", "pwd"})  # quick, too, but perhaps all that was asked for
_KEYWORDS = _words("if then elif else fi do done while until ! { } coproc")
_HEADS = _words("for case select function in esac")  # of what is no command
_SHELLS = _words("bash sh zsh dash ksh ash fish su")
_MODULES = _words(
    "pytest unittest nose nose2 tox nox pip venv virtualenv mypy pyright pylint flake8 ruff black isort coverage"
    " build pre_commit compileall timeit cProfile doctest ipykernel jupyter"
)
_WRAPPERS = {  # with those of its short options that take the next word
    "timeout": "ks", "gtimeout": "ks", "env": "uC", "sudo": "ughpCDrtTU", "doas": "uC", "nohup": "", "setsid": "",
    "time": "fo", "command": "", "builtin": "", "exec": "a", "nice": "n", "ionice": "cn", "chrt": "", "taskset": "",
    "stdbuf": "ioe", "unbuffer": "", "caffeinate": "tw", "flock": "wE", "xvfb-run": "nsefw", "xargs": "nIPLsdaE",
    "npx": "pw", "bunx": "", "uvx": "p", "uv run": "p", "poetry run": "", "pipenv run": "", "pdm run": "p",
    "hatch run": "", "rye run": "", "pixi run": "e", "conda run": "np", "mamba run": "np", "bundle exec": "",
    "pnpm exec": "", "pnpm dlx": "", "yarn exec": "", "yarn dlx": "", "npm exec": "pw", "pipx run": "",
}  # fmt: skip
_OWN_WORD = frozenset({"timeout", "gtimeout", "chrt", "taskset", "flock"})  # before the command
_TWO_WORDS = frozenset(name.split()[0] for name in _WRAPPERS if " " in name)
_VALUED = _words(
    "--kill-after --signal --unset --chdir --user --group --format --output --adjustment --max-args --max-procs"
    " --with --env-file --index --index-url --only-group --extra --directory --project"
    " --python --package --from --spec --name --prefix --cwd"
)


class _Text:
    """A script whose comments end before their newline, which ends a command."""

    def __init__(self, script: str) -> None:
        self._script, self._at = script, 0

    def read(self, size: int, /) -> str:
        begin, self._at = self._at, self._at + size
        return self._script[begin : self._at]

    def readline(self) -> str:
        end = self._script.find("\n", self._at)
        return self.read(end - self._at if end >= 0 else len(self._script))

    def close(self) -> None:
        """For shlex, which may close what it reads."""


def command_name(script: str) -> str:
    """Name the program that a script spends its time in; empty where none can be told.

    The first one that is no ``cd`` or the like. Of a pipe it is the first that counts, though all run.
    """
    names = command_names(script)
    return next((name for name in names if name not in _TALK), names[0] if names else "")


def command_names(script: str) -> list[str]:
    """Name the programs that a script runs, in order, of a pipe the first; ``cd`` and such if there is no other."""
    names = list(_names(script[:_MOST_CHARACTERS], 0))
    return [name for name in names if name not in _QUICK] or names[-1:]


def _names(script: str, depth: int) -> Iterator[str]:
    for words in islice(_commands(script), _MOST_COMMANDS):
        yield from _run_by(words, depth)


def _commands(script: str) -> Iterator[list[str]]:
    """The words of each simple command that begins a pipe, without redirections."""
    text = _without_here_documents(script.replace("\\\n", " "))
    for _ in range(_DEEPEST):
        text = _INNER.sub("$", text)
    text = _NUMBER.sub("", text.replace("$#", "$"))
    lexer = shlex.shlex(_Text(text), posix=True, punctuation_chars=_SIGNS)
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    words: list[str] = []
    piped = target = False
    try:
        for token in lexer:
            if token.strip(_SIGNS):
                if not target:
                    words.append(token)
                target = False
            elif "<" in token or ">" in token:
                target = True
            else:
                if words and not piped:
                    yield words
                if words or token.strip("\n"):  # a pipe goes on in the next line
                    piped = "|" in token and "||" not in token
                words, target = [], False
    except ValueError:  # a quote that is never closed
        pass
    if words and not piped:
        yield words


def _without_here_documents(script: str) -> str:
    lines: list[str] = []
    ends: list[str] = []
    for line in script.split("\n"):
        if not ends:
            lines.append(line)
            ends = [found[2] for found in _HERE.finditer(line)]
        elif line.strip("\t\r") == ends[0]:
            del ends[0]
    return "\n".join(lines)


def _run_by(words: list[str], depth: int) -> Iterator[str]:
    """The name of the program that a simple command runs in the end; several for a script in it."""
    while words and words[0] not in _HEADS:
        if words[0] in _KEYWORDS or _ASSIGNMENT.match(words[0]):
            words = words[1:]
            continue
        name, rest = words[0].rsplit("/", 1)[-1], words[1:]
        script = " ".join(rest) if name == "eval" else _argument(rest, "c") if name in _SHELLS else ""
        if script and depth < _DEEPEST:
            yield from _names(script, depth + 1)
            return
        if _PYTHON_MODULE.fullmatch(name) and (module := _argument(rest, "m").split(".")[0]) in _MODULES:
            yield module
            return
        wrapper = name
        if name in _TWO_WORDS and (rest := _behind_options(rest, "CP")):
            wrapper, rest = f"{name} {rest[0]}", rest[1:]
        words = [] if wrapper not in _WRAPPERS else _behind_options(rest, _WRAPPERS[wrapper])
        if wrapper in _OWN_WORD:
            words = _behind_options(words[1:], "")
        if not words or (name == "command" and rest[:1] in (["-v"], ["-V"])):  # nothing is wrapped
            if _NAME.fullmatch(name):
                yield name
            return


def _argument(words: list[str], letter: str) -> str:
    """What an interpreter's option of that letter is given; empty where a file's name comes first."""
    at = 0
    while at < len(words) - 1 and words[at].startswith(("-", "+")):
        if not words[at].startswith("--") and words[at].endswith(letter):
            return words[at + 1]
        at += 2 if words[at].endswith(("o", "O", "W", "X")) else 1
    return ""


def _behind_options(words: list[str], valued: str) -> list[str]:
    while words and words[0].startswith("-") and words[0] not in ("-", "--"):
        takes_next = words[0] in _VALUED or (len(words[0]) == 2 and words[0][1] in valued)
        words = words[2 if takes_next else 1 :]
    return words[1:] if words[:1] == ["--"] else words
