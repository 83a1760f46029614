"""The cost of the operator, measured on a control plane with simulated nodes, and the results of its campaigns."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""Where `make soak` records what campaigns against the operator found."""
