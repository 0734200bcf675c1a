"""A reader who types a tutorial's lines in their order, each in a terminal of its own, at free addresses."""

import sys
from pathlib import Path

from support.documents import blocks
from support.ports import free_port
from support.terminals import Terminals, with_commands_of

PATIENCE_S = 400.0  # a replay has little claim on the machine
# Commands that go on until Ctrl-C, and what they say once they are there; of the load nothing is waited for.
_SERVE = {"penstock up": r"\bup\b", "penstock engine-double": "listens on", "prometheus": "ready to receive"}
_LOAD = "penstock replay"
_PORTS = ("9467", "9090", "30117")


class Reader:
    """Reads ``page`` in ``folder``."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.folder = folder
        variables = {"PENSTOCK_STATE_DIR": str(folder / "state"), "COLUMNS": "200"}
        self.terminals = Terminals(folder, with_commands_of(sys.executable, **variables))
        ports = {port: str(free_port()) for port in _PORTS}
        self._instead = {f"127.0.0.1:{port}": f"127.0.0.1:{free}" for port, free in ports.items()}
        self._instead["--port 30117"] = f"--port {ports['30117']}"
        self.lines = iter([self.fit(line) for block in blocks(page) for line in block.commands])
        self.files: dict[str, list[str]] = {"toml": [], "yaml": []}
        for block in blocks(page):
            if block.language in self.files:
                self.files[block.language].append(self.fit(block.text))

    def fit(self, text: str) -> str:
        for written, meant in self._instead.items():
            text = text.replace(written, meant)
        return text

    def next(self, begins: str, **names: str) -> str:
        """Type the next line, which begins so, with what the page calls NAMES put in; return what it said."""
        line = next(self.lines)
        assert line.startswith(begins), f"the page goes on with {line!r}"
        for written, meant in names.items():
            line = line.replace(written, meant)
        return self.type(line)

    def type(self, line: str) -> str:
        """Type a line; return what it said."""
        for command, said in _SERVE.items():
            if line.startswith(f"{command} "):
                self.terminals.start(line).until_said(said, PATIENCE_S)
                return ""
        if line.startswith(_LOAD):
            self.terminals.start(line)
            return ""
        terminal = self.terminals.start(line)
        assert terminal.wait(PATIENCE_S) == 0, f"{line}: {terminal.said[-2000:]}"
        assert "Traceback" not in terminal.said
        return terminal.said

    def end(self) -> None:
        """Nothing is left to type; Ctrl-C in each terminal."""
        assert list(self.lines) == []
        self.terminals.interrupt()
