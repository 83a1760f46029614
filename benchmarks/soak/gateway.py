"""The gateway as a process of its own, in front of engines that are told of on its standard input.

`python -m benchmarks.soak.gateway SETTINGS`: SETTINGS and each line of the input are pickled values in base64. A line
is the list of all engines now, or `TASKS`, which is answered on standard output by the number of running tasks.
"""

import asyncio
import base64
import pickle
import sys
from typing import Final

from pdx_proxy.config.settings import Settings
from pdx_proxy.discovery.pod_watcher import SpecSink
from pdx_proxy.process.main import run

TASKS: Final = "tasks"


def packed(value: object) -> bytes:
    """A value as text without blanks."""
    return base64.b64encode(pickle.dumps(value))


class Told:
    """The engines, as whoever started this process tells them."""

    async def run(self, tell: SpecSink) -> None:
        """Pass on what comes in; never ends, because an input that has ended says nothing new."""
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = pickle.loads(base64.b64decode(line))
            if message == TASKS:
                print(len(asyncio.all_tasks()), flush=True)
            else:
                tell(message)
        await asyncio.Event().wait()


if __name__ == "__main__":
    settings = pickle.loads(base64.b64decode(sys.argv[1]))
    assert isinstance(settings, Settings)
    sys.exit(run(settings, Told()))
