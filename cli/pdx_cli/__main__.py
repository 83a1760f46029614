"""`python -m pdx_cli`: `pdx up` starts its children with this, in its own interpreter."""

import sys

from pdx_cli.entry import pdx

sys.exit(pdx())
