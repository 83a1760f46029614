"""`python -m tests.charts.hasty_operator`: the operator, which takes over from one that is gone after seconds."""

import dataclasses
import sys

from pdx_operator.app import main
from pdx_operator.app.settings import Settings
from pdx_operator.controller import claims
from pdx_operator.controller.intervals import Intervals

SECONDS = 4.0


def hasten() -> None:
    """Shorten what `claims` waits for, and the time between two checks of a foreign object."""
    vars(claims)["_EXPIRED_SECONDS"] = SECONDS
    read = main.parse_arguments

    def parse(argv: object) -> Settings:
        return dataclasses.replace(read(None), intervals=Intervals(foreign=1.0))

    vars(main)["parse_arguments"] = parse


if __name__ == "__main__":
    hasten()
    sys.exit(main.main())
