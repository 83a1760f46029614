"""`python -m pdx_operator`."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the operator listens to signals, Ctrl-C prints no traceback

from pdx_operator.app.main import main  # noqa: E402

sys.exit(main())
