"""`python -m pdx_cli`: `pdx up` starts its children with this, in its own interpreter."""

import sys

from pdx_cli.main import main

sys.exit(main())
