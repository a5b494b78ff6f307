"""Whole lives on a beanstalkd: each connection puts a job, reserves one and deletes it.

    python -m bench.load.beanstalk PORT CONNECTIONS SECONDS

Prints the number of lives. uvloop and no more than bytes: about 7 us of CPU a request.
"""

import asyncio
import sys
from typing import cast

import uvloop

PAYLOAD = b'{"data":"%s"}' % (b"x" * 136)
PUT = b"put 0 0 60 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)


class Client(asyncio.Protocol):
    """One connection, one command at a time."""

    lives = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the first life."""
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = b""
        self.transport.write(PUT)

    def data_received(self, data: bytes) -> None:
        """Each answer is followed by the next command."""
        reply = self.buffer + data
        self.buffer = b""
        if reply.startswith(b"RESERVED "):
            head, _, rest = reply.partition(b"\r\n")
            if len(rest) < len(PAYLOAD) + 2:
                self.buffer = reply
                return
            self.transport.write(b"delete %b\r\n" % head.split(b" ")[1])
        elif not reply.endswith(b"\r\n"):
            self.buffer = reply
        elif reply.startswith(b"INSERTED "):
            self.transport.write(b"reserve\r\n")
        else:
            assert reply == b"DELETED\r\n", reply
            Client.lives += 1
            self.transport.write(PUT)


async def main(port: int, connections: int, seconds: float) -> None:
    """Run the clients for so long."""
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(Client, "127.0.0.1", port)
    await asyncio.sleep(seconds)
    print(Client.lives, "lives")


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
