"""The gateway as a separate process. It reads the list of its engines from standard input.

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


class StdinDiscovery:
    """The engines that the parent process names."""

    async def run(self, publish: SpecSink) -> None:
        """Publish every list that is read; never returns, because the end of the input changes nothing."""
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = pickle.loads(base64.b64decode(line))
            if message == TASKS:
                print(len(asyncio.all_tasks()), flush=True)
            else:
                publish(message)
        await asyncio.Event().wait()


if __name__ == "__main__":
    settings = pickle.loads(base64.b64decode(sys.argv[1]))
    assert isinstance(settings, Settings)
    sys.exit(run(settings, StdinDiscovery()))
