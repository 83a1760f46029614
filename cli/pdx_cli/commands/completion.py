"""`pdx completion`: the completion of bash, zsh and fish, made from the parsers of all commands."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pdx_cli.usage import Parser

EPILOG: Final = """\
examples:
  source <(pdx completion bash)                                      in this shell
  pdx completion bash > ~/.local/share/bash-completion/completions/pdx
  pdx completion zsh > "${fpath[1]}/_pdx"                            before compinit
  pdx completion fish > ~/.config/fish/completions/pdx.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx completion`."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help=f"one of: {', '.join(_SCRIPTS)}")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the script of one shell."""
    print(script(args.shell, args.whole_parser()), end="")
    return 0


def script(shell: str, parser: Parser) -> str:
    """Return the completion of a parser with all its commands."""
    commands = {
        name: Command(each.description or "", tuple(_flags(each)), _argument(each))
        for name, each in parser.commands.items()
    }
    return _SCRIPTS[shell](commands)


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a command."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] | None
    """Its choices; empty: a file or any text; None: it takes no value."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    help: str
    flags: tuple[Flag, ...]
    argument: tuple[str, ...] | None
    """Choices of its positional argument; empty: a file; None: it takes none, or a name."""


def _flags(parser: Parser) -> Iterator[Flag]:
    for action in parser.actions:
        if action.option_strings:
            values = None if action.nargs == 0 else tuple(map(str, action.choices or ()))
            text = " ".join((action.help or "").replace("%%", "%").split())
            yield Flag(tuple(action.option_strings), text.partition(" (default")[0], values)


def _argument(parser: Parser) -> tuple[str, ...] | None:
    positional = next((a for a in parser.actions if not a.option_strings), None)
    if positional is None or positional.metavar == "NAME":
        return None
    return tuple(map(str, positional.choices or ()))


def _bash(commands: Mapping[str, Command]) -> str:
    cases = "".join(f"    {name}) {_bash_case(command)} ;;\n" for name, command in commands.items())
    return f"""\
# bash completion of pdx; made by `pdx completion bash`
_pdx() {{
  local cur prev command flags values
  COMPREPLY=()
  cur=${{COMP_WORDS[COMP_CWORD]}}
  prev=${{COMP_WORDS[COMP_CWORD-1]}}
  command=${{COMP_WORDS[1]}}
  # bash splits --flag=value into three words
  [[ $cur == = ]] && cur=
  [[ $prev == = ]] && prev=${{COMP_WORDS[COMP_CWORD-2]}}
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$cur"))
    return
  fi
  case $command in
{cases}  esac
  case "$command $prev" in
{"".join(_bash_values(name, command) for name, command in commands.items())}  esac
  if [[ $values == - ]]; then
    COMPREPLY=($(compgen -f -- "$cur"))
  elif [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ $argument == - ]]; then
    COMPREPLY=($(compgen -f -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$argument" -- "$cur"))
  fi
}}
complete -o filenames -F _pdx pdx
"""


def _bash_case(command: Command) -> str:
    flags = " ".join(name for flag in command.flags for name in flag.names)
    argument = "" if command.argument is None else " ".join(command.argument) or "-"
    return f'flags="{flags}"; local argument="{argument}"'


def _bash_values(name: str, command: Command) -> str:
    lines = ""
    for flag in command.flags:
        if flag.values is not None:
            pattern = "|".join(f'"{name} {each}"' for each in flag.names)
            lines += f'    {pattern}) values="{" ".join(flag.values) or "-"}" ;;\n'
    return lines


def _zsh(commands: Mapping[str, Command]) -> str:
    described = " ".join(shlex.quote(f"{name}:{command.help}") for name, command in commands.items())
    cases = "".join(f"    {name}) _arguments -s {_zsh_arguments(command)} ;;\n" for name, command in commands.items())
    return f"""\
#compdef pdx
# zsh completion of pdx; made by `pdx completion zsh`
_pdx() {{
  local -a commands
  commands=({described})
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}  esac
}}
if [[ $funcstack[1] == _pdx ]]; then _pdx "$@"; else compdef _pdx pdx; fi
"""


def _zsh_arguments(command: Command) -> str:
    specs = []
    for flag in command.flags:
        text = flag.help.translate(str.maketrans("[]:`", "(),'"))
        value = "" if flag.values is None else f":value:{_zsh_values(flag.values)}"
        specs += [shlex.quote(f"*{name}[{text}]{value}") for name in flag.names]
    if command.argument is not None:
        specs.append(shlex.quote(f":argument:{_zsh_values(command.argument)}"))
    return " ".join(specs)


def _zsh_values(values: tuple[str, ...]) -> str:
    return f"({' '.join(values)})" if values else "_files"


def _fish(commands: Mapping[str, Command]) -> str:
    lines = ["# fish completion of pdx; made by `pdx completion fish`", "complete -c pdx -f"]
    for name, command in commands.items():
        lines.append(f"complete -c pdx -n __fish_use_subcommand -a {name} -d {shlex.quote(command.help)}")
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c pdx {condition} {_fish_flag(flag)}" for flag in command.flags]
        if command.argument is not None:
            values = f"-f -a '{' '.join(command.argument)}'" if command.argument else "-F"
            lines.append(f"complete -c pdx {condition} {values}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    value = "" if flag.values is None else f" -x -a '{' '.join(flag.values)}'" if flag.values else " -r -F"
    return f"{names}{value} -d {shlex.quote(flag.help)}"


_SCRIPTS: Final[dict[str, Callable[[Mapping[str, Command]], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
