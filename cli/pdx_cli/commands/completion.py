"""`pdx completion`: the completion of bash, zsh and fish. The shells run `pdx`, and argcomplete answers them."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Final

EPILOG: Final = """\
examples:
  source <(pdx completion bash)                                      in this shell
  pdx completion bash > ~/.local/share/bash-completion/completions/pdx
  pdx completion zsh > "${fpath[1]}/_pdx"                            before compinit
  pdx completion fish > ~/.config/fish/completions/pdx.fish"""
_SHELLS: Final = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx completion`."""
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=f"one of: {', '.join(_SHELLS)}")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the script of one shell."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["pdx"], shell=args.shell, use_defaults=False), end="")  # which are files, where nothing fits
    return 0


def answer(parser_of: Callable[[Sequence[str]], argparse.ArgumentParser]) -> None:
    """Answer a shell that runs `pdx` to complete a line, and end the process. `parser_of`: the parser of some words."""
    import argcomplete

    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()
    argcomplete.autocomplete(parser_of(words[1:]), always_complete_options=False)
