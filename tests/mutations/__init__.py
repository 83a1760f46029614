"""Lines of the gateway that are broken on purpose, each with the test that must fail."""

from typing import Final

from tests.mutations import agents, gateway, handoffs, protocols
from tests.mutations.mutation import Mutation

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *handoffs.MUTATIONS,
    *protocols.MUTATIONS,
    *gateway.MUTATIONS,
    *agents.MUTATIONS,
)
