"""The start of the programs `pdx` and `kubectl-pdx`: an interrupt during the imports ends them without a traceback.

Python's own start, before this module, prints a traceback when an interrupt arrives in it. It takes some milliseconds.
A program that starts this one prevents that with a blocked SIGINT, which stays pending until this module unblocks it.

Imports nothing but a built-in module before it sets the disposition; `import signal` would run Python code.
"""

import _signal  # type: ignore[import-not-found]


def _end_silently() -> None:
    """Let SIGINT end the process, unless it is ignored, as in a shell's background jobs."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


_end_silently()
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))


def pdx(prog: str = "pdx") -> int:
    """Run `pdx`."""
    from pdx_cli.main import main

    try:
        return main(prog=prog)
    finally:
        _end_silently()  # event loops leave Python's handler behind


def plugin() -> int:
    """Run as `kubectl pdx`: kubectl runs the program kubectl-pdx on PATH."""
    return pdx("kubectl pdx")
