"""`python -m pdx_operator`."""

import sys

from pdx_operator.app.main import main

sys.exit(main())
