"""The record of what hand-offs did: `python -m tests.unit.proxy.handoff.record [--show N]`.

It has one line for each script, with a hash of everything that engines noticed and that was counted. Write it anew only
after a change of behaviour that you want; `--show N` prints what the script of line N does, so that you can compare two
commits.
"""

import argparse
import sys
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

from tests.unit.proxy.handoff.situations import scripts
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.handoff.world import run

PATH: Final = Path(__file__).with_name("record.txt")
NUMBER: Final = 2_000


def digest(notes: list[str]) -> str:
    """Return a short hash of what a script did."""
    return blake2b("\n".join(notes).encode(), digest_size=6).hexdigest()


def main() -> int:
    """Write the record, or show one script."""
    parser = argparse.ArgumentParser(description="Record what hand-offs do.")
    parser.add_argument("--show", type=int, metavar="N", help="print what the script of line N does")
    number = parser.parse_args().show
    if number is not None:
        script = next(islice(scripts(NUMBER), number - 1, None))
        sys.stdout.write("\n".join((str(script), *run_virtually(run(script)))) + "\n")
        return 0
    PATH.write_text("".join(f"{digest(run_virtually(run(script)))}\n" for script in scripts(NUMBER)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
