"""The operator's permissions."""

from pdx_api.kube.kinds import CHILD_KINDS
from pdx_operator.app.permissions import ACCESS


def test_every_child_may_be_written() -> None:
    for kind in CHILD_KINDS:
        group = kind.api_version.rpartition("/")[0]
        resource = f"{kind.plural}.{group}" if group else kind.plural
        assert set(ACCESS[resource]) == {"create", "delete", "get", "list", "patch", "watch"}
