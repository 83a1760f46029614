"""`python -m pdx_cluster`."""

import sys

from pdx_cluster.app.main import main

if __name__ == "__main__":
    sys.exit(main())
