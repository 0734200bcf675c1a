"""Generate ``controlplane/wire/_generated`` from ``proto/``: ``python scripts/generate_proto.py``."""

import argparse
import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = "penstock/v1"
OUTPUT = ROOT / "controlplane" / "wire" / "_generated"
MODULE = "controlplane.wire._generated"

_INIT = '"""Generated from ``proto/penstock/v1`` by ``make proto``: do not edit."""\n'


def generate(output: Path) -> list[Path]:
    """Write the message modules and their stubs to ``output``; return the files, sorted by name."""
    sources = sorted((PROTO / PACKAGE).glob("*.proto"))
    if not sources:
        raise FileNotFoundError(f"no .proto files in {PROTO / PACKAGE}")
    output.mkdir(parents=True, exist_ok=True)
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    with tempfile.TemporaryDirectory() as scratch:
        command = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--plugin=protoc-gen-mypy={plugin}"]
        command += [f"--python_out={scratch}", f"--mypy_out=quiet:{scratch}", *map(str, sources)]
        if protoc.main(command) != 0:
            raise RuntimeError("protoc failed: its messages are above")
        for made in (Path(scratch) / PACKAGE).iterdir():
            # protoc imports by the path below -I; ours is a package inside controlplane.
            text = re.sub(r"^from penstock\.v1 import", f"from {MODULE} import", made.read_text(), flags=re.M)
            if made.suffix == ".pyi":
                text = re.sub(r"\bpenstock\.v1\.(?=\w+_pb2\b)", f"{MODULE}.", text)
            (output / made.name).write_text(text)
    (output / "__init__.py").write_text(_INIT)
    return sorted(output.glob("*.py*"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write to (default: %(default)s)")
    for path in generate(parser.parse_args().output):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
