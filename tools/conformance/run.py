"""Run the official conformance suite of Connect and gRPC against the front end.

    python tools/conformance/run.py RUNNER DIRECTORY

RUNNER is the program `connectconformance`, DIRECTORY the source of its module, which holds the
definitions of the service. All cases of what config.yaml declares have to pass; there is no list of
known failures.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SERVICE = Path(__file__).parents[2] / "tests/conformance"
PROTOS = "connectrpc/conformance/v1"


def main(runner: str, module: str) -> int:
    """The status of the runner."""
    protos = Path(module) / "proto"
    with tempfile.TemporaryDirectory() as made:
        bundled = Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{protos}", f"-I{bundled}", f"--python_out={made}"]
        names = [f"{PROTOS}/{name}.proto" for name in ("config", "service", "server_compat")]
        if protoc.main([*arguments, *names]):
            return 1
        command = [runner, "--conf", str(SERVICE / "config.yaml"), "--mode", "server", "--"]
        command += [sys.executable, str(SERVICE / "server.py"), made]
        print("$", *command, flush=True)
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
