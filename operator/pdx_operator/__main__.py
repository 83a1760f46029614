"""`python -m pdx_operator`."""

import sys

from pdx_operator.main import main

sys.exit(main())
