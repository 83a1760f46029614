"""Write the commands and flags of all programs as Markdown, from their parsers."""

import argparse
import re
from collections.abc import Iterator
from typing import Final

from pdx_cli.main import COMMANDS, parser_of
from pdx_cli.runs.run_record import default_root
from pdx_operator.app.main import create_parser as operator_parser
from pdx_proxy.__main__ import create_parser as gateway_parser

HEAD: Final = """\
# Commands and flags

This page has the `--help` of every command of `pdx`, of the gateway and of the operator. `make generate`
writes this page from the programs. In a cluster, the operator sets the flags of gateways from the fields of the
PDDeployment ([Fields](reference.md)); [Gateway](gateway.md) explains what they change.
"""
_STATE_HOME: Final = "~/.local/state/pdx"
_GENERAL: Final = {"positional arguments": "Arguments", "options": "Flags"}


def command_line() -> str:
    """The page."""
    pdx, _ = parser_of((), "pdx", complete=True)
    commands = pdx.commands
    listed = "".join(f"| [`pdx {name}`](#pdx-{name}) | {summary} |\n" for name, (_, summary) in COMMANDS.items())
    sections = [section(f"pdx {name}", commands[name]) for name in COMMANDS]
    programs = [section(parser.prog, parser) for parser in (gateway_parser(), operator_parser())]
    return (
        f"{HEAD}\n| command | what it does |\n|---|---|\n{listed}\n{''.join(sections)}{''.join(programs)}".rstrip()
        + "\n"
    )


def section(title: str, parser: argparse.ArgumentParser) -> str:
    """The heading and the tables of one parser."""
    tables = "".join(_tables(parser))
    return f"## `{title}`\n{parser.description}\n\n{tables}"


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        shown = [
            action for action in group._group_actions if action.help != argparse.SUPPRESS and action.dest != "help"
        ]
        if shown:
            title = _GENERAL.get(group.title or "", group.title or "")
            rows = "".join(f"| {_name(action)} | {_meaning(parser, action)} |\n" for action in shown)
            yield f"| {title.lower() if title in _GENERAL.values() else title} | meaning |\n|---|---|\n{rows}\n"


def _name(action: argparse.Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{flag}{' ' + value if value else ''}`" for flag in action.option_strings)


def _value(action: argparse.Action) -> str:
    """What stands after a flag; empty if nothing does."""
    if action.nargs == 0:
        return ""
    name = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    text = name if isinstance(name, str) else " ".join(name)
    if action.choices is not None and action.metavar is None:
        text = "{" + ",".join(str(choice) or '""' for choice in action.choices) + "}"
    if action.nargs in {"+", "*"}:
        return f"{text} ..."
    return f"[{text}]" if action.nargs == "?" else text


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help text in one line, without what depends on this machine. A bar and an HTML tag stand there as text."""
    values = {**vars(action), "prog": parser.prog}
    text = re.sub(r", \d+ here\b", "", (action.help or "") % values).replace(str(default_root()), _STATE_HOME)
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
