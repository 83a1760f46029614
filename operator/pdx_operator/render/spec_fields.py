"""Which field of the spec describes the engines of a role."""

from typing import TYPE_CHECKING

from pdx_api.names import Role

if TYPE_CHECKING:
    from pdx_api.spec.types import Spec


def field_of(spec: "Spec", role: Role) -> Role:
    """The field's name: the role, or `decode` for aggregated engines that the spec does not describe separately."""
    return Role.DECODE if role is Role.AGGREGATED and spec.aggregated is None else role
