"""Generate the protobuf code in ``_generated`` folders from ``proto/``: ``python scripts/generate_proto.py``."""

import argparse
import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGES = {"penstock/v1": "controlplane/wire/_generated", "envoy": "controlplane/fleet/_generated"}
"""By the folder below ``proto``: where its code goes."""

_INIT = '"""Generated from ``proto/{package}`` by ``make proto``: do not edit."""\n'


def generate(root: Path) -> list[Path]:
    """Write the message modules and their stubs below ``root``; return the files, sorted by name."""
    return [file for package, folder in PACKAGES.items() for file in _generate(package, folder, root / folder)]


def _generate(package: str, folder: str, output: Path) -> list[Path]:
    sources = sorted((PROTO / package).glob("*.proto"))
    if not sources:
        raise FileNotFoundError(f"no .proto files in {PROTO / package}")
    output.mkdir(parents=True, exist_ok=True)
    module, name = folder.replace("/", "."), package.replace("/", ".")
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    with tempfile.TemporaryDirectory() as scratch:
        command = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--plugin=protoc-gen-mypy={plugin}"]
        command += [f"--python_out={scratch}", f"--mypy_out=quiet:{scratch}", *map(str, sources)]
        if protoc.main(command) != 0:
            raise RuntimeError("protoc failed: its messages are above")
        for made in (Path(scratch) / package).iterdir():
            # protoc imports by the path below -I; ours is a package inside controlplane.
            text = re.sub(rf"^from {re.escape(name)} import", f"from {module} import", made.read_text(), flags=re.M)
            if made.suffix == ".pyi":
                text = re.sub(rf"\b{re.escape(name)}\.(?=\w+_pb2\b)", f"{module}.", text)
            (output / made.name).write_text(text)
    (output / "__init__.py").write_text(_INIT.format(package=package))
    return sorted(output.glob("*.py*"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT, help="root to write below (default: %(default)s)")
    for path in generate(parser.parse_args().output):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
