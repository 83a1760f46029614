"""The gateway as a program: run the control side until a signal."""

import asyncio
import contextlib
import os
import signal
import sys

import uvloop

from pdx_proxy import compiled
from pdx_proxy.admission import api_keys
from pdx_proxy.admission.api_keys import KeyFileError
from pdx_proxy.config.settings import Settings
from pdx_proxy.discovery.pod_watcher import Discovery, DiscoveryError, log_warning
from pdx_proxy.http.downstream.certificate import CertificateError, certificate_of
from pdx_proxy.http.downstream.listener import raise_file_limit
from pdx_proxy.process.control import Control
from pdx_proxy.process.worker import keep_memory, spare_collector
from pdx_proxy.process.workers import ListenError
from pdx_proxy.telemetry.access_log import configure_logs


def run(settings: Settings, discovery: Discovery | None = None) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    1: discovery cannot start, or the system refuses something. 2: a port is taken, or a key file or a certificate is
    wrong. One line on stderr gives the reason.
    """
    try:
        configure_logs(settings)
        api_keys.check(settings.keys)
        certificate_of(settings.tls, lambda _: None)
        raise_file_limit()
        return uvloop.run(_serve(settings, discovery))
    except (KeyFileError, CertificateError) as error:
        log_warning(str(error).removesuffix("."))
        return 2
    except ListenError as error:
        log_warning(str(error))
        return 2
    except OSError as error:
        log_warning(f"the gateway failed: {error}")
        return 1


async def _serve(settings: Settings, discovery: Discovery | None) -> int:
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    control = await Control.start(settings, discovery)
    keep_memory()
    spare_collector()
    scheme = "http" if settings.tls.certificate is None else "https"
    sys.stdout.write(f"pdx gateway: serving on {scheme}://{settings.listen}, admin on http://{settings.admin}\n")
    if compiled.state() == compiled.NOT_COMPILED and os.environ.get(compiled.VARIABLE) != "0":
        sys.stdout.write(f"pdx gateway: {compiled.NOT_COMPILED}; `pdx gateway --compile` compiles it once\n")
    sys.stdout.flush()
    failure = await _wait_for_end(signals, control)
    if failure is None:
        control.drain()
        with contextlib.suppress(TimeoutError):  # a second signal ends the wait
            await asyncio.wait_for(signals.get(), settings.drain_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await control.stop()
    if failure is not None:
        log_warning(str(failure))
    return 1 if failure else 0


async def _wait_for_end(signals: "asyncio.Queue[None]", control: Control) -> DiscoveryError | None:
    """Wait for a signal, or return the error with which discovery fails for good."""
    signalled = asyncio.create_task(signals.get())
    tasks: list[asyncio.Task[None]] = [signalled, *([control.discovery] if control.discovery else [])]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        return None
    signalled.cancel()
    try:
        await tasks[1]
    except DiscoveryError as failure:
        return failure
    raise AssertionError("discovery ends only with an error")
