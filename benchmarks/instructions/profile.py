"""Reads what callgrind has written: instructions, system calls, and what each function did. Pure.

The format is described in valgrind's manual, "Callgrind Format Specification".
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_OWN: Final = "CPyDef_"
"""Begins the names of functions that mypyc has compiled."""
_COROUTINE: Final = re.compile(r"(?P<module>\w+?)___(?P<function>\w+?)(_(?P<owner>[A-Z]\w*?))?_gen(_obj)?___\w+")
_NAME: Final = re.compile(r"\((\d+)\)(?: (.*))?")


@dataclass(frozen=True, slots=True)
class Function:
    """What a function did."""

    inclusive: float
    """Instructions, with those of the functions that it called."""
    own: float
    """Without those."""
    calls: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Instructions and system calls of a time, or of one request."""

    instructions: float
    system_calls: float
    functions: Mapping[str, Function]

    def per_request(self, shorter: "Profile", requests: int) -> "Profile":
        """Return what each of `requests` cost, which this profile has more than `shorter`."""

        def share(more: float, less: float) -> float:
            return (more - less) / requests

        nothing = Function(0, 0, 0)
        functions = {}
        for name, function in self.functions.items():
            less = shorter.functions.get(name, nothing)
            functions[name] = Function(
                share(function.inclusive, less.inclusive),
                share(function.own, less.own),
                share(function.calls, less.calls),
            )
        instructions = share(self.instructions, shorter.instructions)
        return Profile(instructions, share(self.system_calls, shorter.system_calls), functions)


@dataclass(slots=True)
class _Sums:
    """The sums of one function."""

    called: int = 0
    """Instructions of all calls of it, with those of the functions that it called."""
    own: int = 0
    calls: int = 0


@dataclass(slots=True)
class _Reader:
    """The state of reading one file."""

    names: dict[str, str] = field(default_factory=dict)
    sums: defaultdict[str, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    current: str = ""
    callee: str = ""
    call: bool = False
    """Whether the next line of costs belongs to a call."""

    def name_of(self, text: str) -> str:
        """Return a function's name. The file has each name once, then only its number."""
        found = _NAME.fullmatch(text)
        if found is None:
            return text
        number, name = found.groups()
        if name is not None:
            self.names[number] = name
        return self.names[number]


def read_profile(lines: Iterable[str]) -> Profile:
    """Read one dump of callgrind, made with `--dump-line=no`. Raises ValueError if it has no totals."""
    reader, events, totals = _Reader(), ["Ir"], None
    for line in lines:
        if line[:1].isdigit() or line[:1] in "+-*":
            _add_costs(reader, line)
        elif line.startswith("fn="):
            reader.current = reader.name_of(line[3:].rstrip("\n"))
        elif line.startswith("cfn="):
            reader.callee = reader.name_of(line[4:].rstrip("\n"))
        elif line.startswith("calls="):
            reader.sums[reader.callee].calls += int(line[6:].split()[0])
            reader.call = True
        elif line.startswith("events: "):
            events = line.split()[1:]
        elif line.startswith("totals: "):
            totals = [int(number) for number in line.split()[1:]]
    if totals is None:
        raise ValueError("The file has no totals.")
    by_event = dict(zip(events, totals, strict=False))
    functions = {name: Function(sums.called or sums.own, sums.own, sums.calls) for name, sums in reader.sums.items()}
    return Profile(by_event["Ir"], by_event.get("sysCount", 0), functions)


def _add_costs(reader: _Reader, line: str) -> None:
    costs = line.split(maxsplit=2)
    instructions = int(costs[1]) if len(costs) > 1 else 0
    if not reader.call:
        reader.sums[reader.current].own += instructions
    elif reader.callee != reader.current:
        reader.sums[reader.callee].called += instructions
    reader.call = False


def is_own(name: str) -> bool:
    """Whether this is a compiled function of the gateway."""
    return name.startswith(_OWN)


def readable(name: str) -> str:
    """Return the name of a compiled function as Python has it: module, class, function."""
    if not is_own(name):
        return name
    plain = name.removeprefix(_OWN)
    coroutine = _COROUTINE.fullmatch(plain)
    if coroutine is None:
        return plain.replace("____", "._").replace("___", ".")
    parts = coroutine.group("module", "owner", "function")
    return ".".join(part for part in parts if part).replace("___", ".")
