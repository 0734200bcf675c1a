"""What a shell script runs: the names of its programs, and of these the one that takes the time.

Only names leave this file, never an argument, a variable's value or a path. A name is what a program goes by in
``PATH``; a module of Python's is one where it is a well-known program (``python -m pytest``). What stands around a
command and takes no time itself (``timeout 60``, ``env A=b``, ``sudo -u x``, ``uv run``) is looked through, and so
is a script in quotes (``bash -c "..."``).

It reads as a shell does, but for what only running the script would tell. Any text is read without an error, each
character once for each shell in a shell.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

_MOST_CHARACTERS = 16_384  # of a script: what it begins with names it
_MOST_COMMANDS = 64
_DEEPEST = 4  # scripts in scripts
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,63}|\[\[?|[.:]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_NUMBERED = re.compile(r"[0-9]*[<>]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They change the shell or test something, and are not waited for.
_QUICK = _words(
    "cd pushd popd dirs source . export set unset alias unalias shopt ulimit umask declare local readonly typeset"
    " trap true false : [ [[ test shift return exit break continue wait hash"
)
_TALK = _words("echo printf pwd")  # quick, too, but perhaps all that was asked for
_KEYWORDS = _words("if then elif else fi do done while until ! { } coproc")
_HEADS = _words("for case select function in esac")  # of what is no command
_SHELLS = _words("bash sh zsh dash ksh ash fish")
_MODULES = _words(
    "pytest unittest nose nose2 tox nox pip venv virtualenv mypy pyright pylint flake8 ruff black isort coverage"
    " build pre_commit compileall timeit cProfile doctest ipykernel jupyter"
)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """``valued``: its options that take the next word; ``words``: how many of its own follow them."""

    valued: frozenset[str] = frozenset()
    words: int = 0


def _wrapper(valued: str = "", words: int = 0) -> _Wrapper:
    return _Wrapper(_words(valued), words)


_WRAPPERS = {
    "timeout": _wrapper("-k --kill-after -s --signal", 1),
    "env": _wrapper("-u --unset -C --chdir"),
    "sudo": _wrapper("-u --user -g --group -h --host -p --prompt -C -D --chdir -r --role -t --type -T -U"),
    "doas": _wrapper("-u -C"),
    "gtimeout": _wrapper("-k --kill-after -s --signal", 1),
    "caffeinate": _wrapper("-t -w"),
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "time": _wrapper("-f --format -o --output"),
    "command": _wrapper(),
    "builtin": _wrapper(),
    "exec": _wrapper("-a"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata"),
    "chrt": _wrapper("", 1),
    "taskset": _wrapper("", 1),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "unbuffer": _wrapper(),
    "flock": _wrapper("-w --timeout -E --conflict-exit-code", 1),
    "xvfb-run": _wrapper("-n --server-num -s --server-args -e --error-file -f --auth-file -w --wait"),
    "xargs": _wrapper("-n --max-args -I -P --max-procs -L --max-lines -s --max-chars -d --delimiter -a -E"),
    "uv run": _wrapper(
        "--with --with-requirements --extra --group --only-group --env-file --directory --project --python -p"
        " --package --index --index-url --cache-dir --config-file"
    ),
    "poetry run": _wrapper(),
    "pipenv run": _wrapper(),
    "pdm run": _wrapper("-p --project"),
    "hatch run": _wrapper(),
    "rye run": _wrapper(),
    "pixi run": _wrapper("-e --environment --manifest-path"),
    "conda run": _wrapper("-n --name -p --prefix --cwd"),
    "mamba run": _wrapper("-n --name -p --prefix --cwd"),
    "bundle exec": _wrapper(),
    "pnpm exec": _wrapper(),
    "pnpm dlx": _wrapper(),
    "yarn exec": _wrapper(),
    "yarn dlx": _wrapper(),
    "npm exec": _wrapper("-p --package -w --workspace"),
    "npx": _wrapper("-p --package -w --workspace"),
    "bunx": _wrapper(),
    "uvx": _wrapper("--from --with --python -p --index"),
    "pipx run": _wrapper("--spec --python"),
}
_TWO_WORDS = frozenset(name.split()[0] for name in _WRAPPERS if " " in name)
_GLOBAL_VALUED = _words("--directory --project -C --cwd -P")  # of ``uv --directory x run``


def command_name(script: str) -> str:
    """The program that a script spends its time in; empty where none can be told.

    The first one that is no ``cd`` or the like. Of a pipe it is the first that counts, though all run.
    """
    names = command_names(script)
    return next((name for name in names if name not in _TALK), names[0] if names else "")


def command_names(script: str) -> list[str]:
    """The programs that a script runs in its order, of a pipe the first; ``cd`` and such if there is no other."""
    names = list(_names(script[:_MOST_CHARACTERS], 0))
    return [name for name in names if name not in _QUICK] or names[-1:]


def _names(script: str, depth: int) -> Iterator[str]:
    for command in islice(_Reader(script).commands(), _MOST_COMMANDS):
        yield from _run_by(command, depth)


def _run_by(words: Sequence[str], depth: int) -> Iterator[str]:
    """The name of the program that a simple command runs in the end; several for a script in it."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in _HEADS:
            return
        if word in _KEYWORDS or _ASSIGNMENT.match(word):
            at += 1
            continue
        name = word.rsplit("/", 1)[-1]
        inside = _script_of(name, words[at + 1 :])
        if inside is not None and depth < _DEEPEST:
            yield from _names(inside, depth + 1)
            return
        module = _module_of(name, words[at + 1 :])
        if module:
            yield module
            return
        behind = _behind_wrapper(name, words, at)
        if behind >= len(words) or behind == at:  # nothing is wrapped
            if _NAME.fullmatch(name):
                yield name
            return
        at = behind


def _script_of(name: str, words: Sequence[str]) -> str | None:
    """The script that a shell is given in a word: ``bash -lc "..."``, ``eval "..."``."""
    if name == "eval":
        return " ".join(words)
    if name not in _SHELLS and name != "su":
        return None
    at = 0
    while at < len(words) - 1:
        word = words[at]
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return words[at + 1]
        if not word.startswith(("-", "+")) and name != "su":
            return None  # a file's name: what follows are its arguments
        at += 2 if word.startswith(("-", "+")) and word.endswith(("o", "O")) else 1
    return None


def _module_of(name: str, words: Sequence[str]) -> str:
    """The well-known program that ``python -m`` runs."""
    if not re.fullmatch(r"python[0-9.]*|pypy[0-9.]*", name):
        return ""
    for number, word in enumerate(words[:-1]):
        if word == "-m":
            top = words[number + 1].split(".")[0]
            return top if top in _MODULES else ""
        if not word.startswith("-") and words[max(0, number - 1)] not in ("-W", "-X"):
            return ""
    return ""


def _behind_wrapper(name: str, words: Sequence[str], at: int) -> int:
    """Where the command begins that ``words[at]`` wraps; ``at`` where it wraps none."""
    first = at + 1
    if name in _TWO_WORDS:
        first = _behind_options(words, first, _GLOBAL_VALUED)
        name = f"{name} {words[first]}" if first < len(words) else name
        first += 1
    wrapper = _WRAPPERS.get(name)
    if wrapper is None or (name == "command" and words[first : first + 1] in (["-v"], ["-V"])):
        return at
    first = _behind_options(words, first, wrapper.valued)
    return _behind_options(words, first + wrapper.words, frozenset()) if wrapper.words else first


def _behind_options(words: Sequence[str], at: int, valued: frozenset[str]) -> int:
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if not word.startswith("-") or word == "-":
            return at
        at += 2 if word in valued else 1
    return at


@dataclass(slots=True)
class _Reader:
    """A script's words, and where its simple commands end."""

    script: str
    at: int = 0
    here: list[str] = field(default_factory=list)  # ends of the here-documents that begin with the next line

    def commands(self) -> Iterator[list[str]]:
        """The words of each simple command that begins a pipe; redirections are no words."""
        script, piped, target = self.script, False, False
        words: list[str] = []
        while self.at < len(script):
            character = script[self.at]
            if character in " \t\r":
                self.at += 1
            elif script.startswith("\\\n", self.at):
                self.at += 2
            elif character == "#":
                self.at = self._find("\n", self.at)
            elif character in "\n;&|()":
                if character == "&" and script.startswith("&>", self.at):
                    self.at += 2 + script.startswith("&>>", self.at)
                    target = True
                    continue
                yield from self._end(words, piped)
                if words or character != "\n":  # a pipe goes on in the next line
                    piped = character == "|" and not script.startswith("||", self.at)
                words, target = [], False
                self._behind(character)
            elif _NUMBERED.match(script, self.at):
                target = self._redirected()
            elif target:
                self._word()
                target = False
            else:
                words.append(self._word())
        yield from self._end(words, piped)

    @staticmethod
    def _end(words: list[str], piped: bool) -> Iterator[list[str]]:
        if words and not piped:
            yield words

    def _behind(self, character: str) -> None:
        """Past what ends a command, and past the here-documents that follow a line."""
        while self.at < len(self.script) and self.script[self.at] == character and character != "\n":
            self.at += 1
        if character != "\n":
            return
        self.at += 1
        for end in self.here:
            while self.at < len(self.script):
                line_end = self._find("\n", self.at)
                line = self.script[self.at : line_end]
                self.at = line_end + 1
                if line.strip("\t\r") == end:
                    break
        self.here.clear()

    def _redirected(self) -> bool:
        """Past a redirection's sign; whether a word of it follows."""
        match = _NUMBERED.match(self.script, self.at)
        assert match is not None
        self.at = match.end() - 1
        sign = self.script[self.at : self.at + 3]
        if sign.startswith("<<") and sign != "<<<":
            self.at += 3 if sign == "<<-" else 2
            while self.at < len(self.script) and self.script[self.at] in " \t":
                self.at += 1
            self.here.append(self._word())
            return False
        if sign.startswith(("<(", ">(")):
            self.at = self._closed(self.at + 2, ")")
            return False
        while self.at < len(self.script) and self.script[self.at] in "<>&|":
            self.at += 1
        return True

    def _word(self) -> str:
        """The word that begins here, without its quotes."""
        script = self.script
        parts: list[str] = []
        while self.at < len(script) and script[self.at] not in " \t\r\n;&|()<>":
            character, start = script[self.at], self.at
            if character == "\\":
                parts.append(script[start + 1 : start + 2])
                self.at += 2
            elif character == "'":
                self.at = self._find("'", start + 1) + 1
                parts.append(script[start + 1 : self.at - 1])
            elif character == '"':
                self.at = self._closed(start + 1, '"')
                parts.append(re.sub(r'\\(["\\$`\n])', r"\1", script[start + 1 : self.at - 1]))
            elif character == "`":
                self.at = self._closed(start + 1, "`")
                parts.append("`")
            elif script.startswith("$(", start):
                self.at = self._closed(start + 2, ")")
                parts.append("$")
            else:
                self.at += 1
                parts.append(character)
        return "".join(parts)

    def _closed(self, at: int, closing: str) -> int:
        """Behind the sign that closes what begins at ``at``; the end of the text where none does."""
        script, depth = self.script, 1
        while at < len(script):
            character = script[at]
            if character == "\\":
                at += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            elif closing == ")" and character == "(":
                depth += 1
            elif closing == ")" and character == "'":
                at = self._find("'", at + 1)
            at += 1
        return len(script) + 1

    def _find(self, text: str, at: int) -> int:
        found = self.script.find(text, at)
        return found if found >= 0 else len(self.script)
