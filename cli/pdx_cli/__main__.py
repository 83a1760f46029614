"""`python -m pdx_cli`: how `pdx up` starts its children with the interpreter it runs on."""

import sys

from pdx_cli.main import main

sys.exit(main())
