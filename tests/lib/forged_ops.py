"""`corvo server` that proposes an op which no request can make.

    python tests/lib/forged_ops.py COMMAND...

The command is ignored up to `server`. On SIGUSR1 the server proposes a RetryJob of an unknown
version: no node can apply its entry. On SIGUSR2 it proposes an Enqueue whose parent has a NUL, as
older versions did for a request.
"""

import signal
import sys

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.cli import main
from corvo.node import node
from lib.fsm_driver import enqueue_step

UNREADABLE = b"\2"


def parent_with_nul() -> bytes:
    """The payload of an Enqueue with the parent `a`, NUL, `b`."""
    _, values = enqueue_step("forged", parent_id="aXb")
    return encode_fields(ops.ENQUEUE.layout, values).replace(b"aXb", b"a\0b")


class ForgingNode(node.Node):
    """A node that makes an op on a signal."""

    async def run(self) -> int:
        """Serve until a signal."""
        forged = {
            signal.SIGUSR1: (ops.RETRY_JOB, UNREADABLE),
            signal.SIGUSR2: (ops.ENQUEUE, parent_with_nul()),
        }
        for number, (op, payload) in forged.items():
            self.loop.add_signal_handler(number, self._forge, op, payload)
        return await super().run()

    def _forge(self, op: ops.Op, payload: bytes) -> None:
        self.pipeline.add(op, payload, None)
        self.pipeline.request_seal()


if __name__ == "__main__":
    node.Node = ForgingNode  # type: ignore[misc]
    sys.argv = ["corvo", *sys.argv[sys.argv.index("server") :]]
    sys.exit(main())
