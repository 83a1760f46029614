"""`pdx sim` as a program."""

import signal
import subprocess
import sys

import pytest

from pdx_cli.local import ports
from tests.component.cli.programs import SECONDS, TEST_SECONDS

pytestmark = pytest.mark.timeout(TEST_SECONDS)


def test_it_prints_where_it_serves() -> None:
    port, side = ports.allocate(2)
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "pdx_cli", "sim", "--role", "both"),
            *("--listen", f"127.0.0.1:{port}", "--side-channel", f"127.0.0.1:{side}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"pdx sim: serving on http://127.0.0.1:{port}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
