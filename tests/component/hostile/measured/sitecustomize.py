"""Measures the gateway from outside: the CPU time of every callback of its event loops.

Python imports this module at its start if its directory is in PYTHONPATH, so the gateway and its workers have it. It
wraps what an event loop calls: tasks, timers, and the methods of protocols. A callback that uses more CPU time than
`PDX_CALLBACK_SECONDS` adds a line of JSON to the file `PDX_CALLBACKS`: when it ended, seconds, process and name.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_FILE: Final = os.environ.get("PDX_CALLBACKS", "")
_MOST: Final = float(os.environ.get("PDX_CALLBACK_SECONDS", "0.05"))
_METHODS: Final = (
    *("connection_made", "connection_lost", "data_received", "eof_received"),
    *("pause_writing", "resume_writing", "get_buffer", "buffer_updated"),
)
_running = False
"""Whether a callback runs: what it calls belongs to it."""


def _name(callback: Any) -> str:
    """What a callback is: the coroutine of a task and the line at which it waits now, or the function."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        names = []
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None)
            names.append(f"{getattr(coroutine, '__qualname__', coroutine)}:{frame.f_lineno if frame else 'ended'}")
            coroutine = getattr(coroutine, "cr_await", None)
        return " > ".join(names)
    return f"{type(owner).__name__}.{getattr(callback, '__qualname__', callback)!s}"


def _report(callback: Any, seconds: float) -> None:
    line = {"at": time.time(), "seconds": round(seconds, 4), "pid": os.getpid(), "name": _name(callback)}
    with open(_FILE, "a", encoding="utf-8") as out:  # one short write in append mode is atomic
        out.write(json.dumps(line) + "\n")


def _timed(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Measure each call."""

    def call(*args: Any, **named: Any) -> Any:
        global _running
        if _running:
            return callback(*args, **named)
        _running, began = True, time.thread_time()
        try:
            return callback(*args, **named)
        finally:
            _running = False
            seconds = time.thread_time() - began
            if seconds > _MOST:
                _report(callback, seconds)

    return call


def _instrument(cls: type) -> None:
    """Measure the methods that a transport calls."""
    for name in _METHODS:
        method = cls.__dict__.get(name)
        if callable(method) and not hasattr(method, "measured"):
            timed = _timed_method(method)
            with suppress(TypeError, AttributeError):  # a compiled class cannot be changed
                setattr(cls, name, timed)


def _timed_method(method: Callable[..., Any]) -> Callable[..., Any]:
    call = _timed(method)

    def measured(self: Any, *args: Any) -> Any:
        return call(self, *args)

    measured.__qualname__ = getattr(method, "__qualname__", str(method))
    measured.measured = True  # type: ignore[attr-defined]
    return measured


def _factory(make: Callable[[], Any]) -> Callable[[], Any]:
    """Measure the class of a protocol before a transport gets one."""

    def made() -> Any:
        protocol = make()
        if type(protocol) not in _INSTRUMENTED:
            _instrument_all(type(protocol))
        return protocol

    return made


_INSTRUMENTED: Final[set[type]] = set()


def _instrument_all(cls: type) -> None:
    """Measure a class, what it inherits, and what inherits from it."""
    for each in (*cls.__mro__[:-1], *_descendants(cls)):
        if each not in _INSTRUMENTED:
            _INSTRUMENTED.add(each)
            _instrument(each)


def _descendants(cls: type) -> list[type]:
    found: list[type] = cls.__subclasses__()
    return [each for child in found for each in (child, *_descendants(child))]


def _install() -> None:
    import uvloop

    loop: Any = uvloop.Loop

    class Measured(loop):  # type: ignore[misc]
        """uvloop, with measured callbacks."""

        def call_soon(self, callback: Any, *args: Any, **named: Any) -> Any:
            return super().call_soon(_timed(callback), *args, **named)

        def call_soon_threadsafe(self, callback: Any, *args: Any, **named: Any) -> Any:
            return super().call_soon_threadsafe(_timed(callback), *args, **named)

        def call_later(self, delay: float, callback: Any, *args: Any, **named: Any) -> Any:
            return super().call_later(delay, _timed(callback), *args, **named)

        def call_at(self, when: float, callback: Any, *args: Any, **named: Any) -> Any:
            return super().call_at(when, _timed(callback), *args, **named)

        def add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
            return super().add_reader(fd, _timed(callback), *args)

        async def create_server(self, factory: Any, *args: Any, **named: Any) -> Any:
            _instrument_all(asyncio.BaseProtocol)  # a transport may change its protocol
            return await super().create_server(_factory(factory), *args, **named)

        async def create_connection(self, factory: Any, *args: Any, **named: Any) -> Any:
            return await super().create_connection(_factory(factory), *args, **named)

    run = uvloop.run
    uvloop.run = lambda main, **named: run(main, **{"loop_factory": Measured, **named})


if _FILE:
    _install()
