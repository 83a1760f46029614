"""The Events of a reconcile."""

from pdx_operator.controller.applier import ApplyResult
from pdx_operator.controller.reconciler import events
from pdx_operator.kube.resources import ChildKey, Event
from pdx_operator.plan.operations import Apply


def test_events_name_children_by_kind() -> None:
    apply = Apply({"kind": "Service", "metadata": {"name": "s"}}, "u", "spec.selector")
    created = (ChildKey("Service", "b"), ChildKey("Deployment", "x"), ChildKey("Service", "a"))
    result = ApplyResult(created=created, updated=(apply,), deleted=(ChildKey("Service", "z"),))
    assert events(result) == [
        Event("Created", "Created Deployment x; Service a, b."),
        Event("Updated", "Updated Service s (spec.selector)."),
        Event("Removed", "Removed Service z."),
    ]
    assert events(ApplyResult()) == []
