"""What the A/B would start engines with on a GPU is what their own parsers know."""

import subprocess
import sys
from pathlib import Path

from engine_server import ROOT
from engine_versions import KIND as TESTED

sys.path.insert(0, str(ROOT / "bench"))

from ab.kinds import KINDS
from ab.scenario import ON_A_GPU
from ab.systems import parse_system

# What each server's main function parses its command line with.
_PARSERS = {
    "sglang": """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parser.parse_args(sys.argv[1:])
""",
    "vllm": """
import sys
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:  # older ones
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
""",
}


def test_an_engine_knows_what_it_would_be_started_with_on_a_gpu(engine_env: Path, tmp_path: Path) -> None:
    kind = KINDS[TESTED.name]
    shape = ON_A_GPU.on(kind.name, "").engine
    flags = parse_system("priority", kind).flags if kind.priorities else ()
    server = shape.server(
        tmp_path,
        environment=engine_env,
        model=tmp_path / "model",
        pool_tokens=shape.pool_tokens,
        arguments=(*kind.arguments(shape), *flags),
    )
    arguments = server.command[server.command.index("-m") + 2 :]
    asked = [str(engine_env / "bin" / "python"), "-W", "ignore", "-c", _PARSERS[kind.name], *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert str(shape.pool_tokens // server.block_tokens + (kind.name == "vllm")) in arguments
