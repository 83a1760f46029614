"""Kubernetes' LabelSelector, bounded, and the pods that it selects."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from pdx_api.rule import Rule
from pdx_api.spec.fields import LabelKey, Labels, LabelValue, Part, without_default

_WITH_VALUES: Final = ("In", "NotIn")


class LabelRequirement(Part):
    """A requirement on one label."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values, Exists and DoesNotExist have none; write values with In or NotIn only",
            lambda requirement: (requirement.operator in _WITH_VALUES) == bool(requirement.values),
        ),
    )

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the label is compared.")
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(
        default=[], description="The values that In and NotIn compare with.", json_schema_extra=without_default
    )


class LabelSelector(Part):
    """Selects objects by their labels, as in Kubernetes. Every requirement holds."""

    match_labels: Labels = Field(default={}, description="Labels and their values.", json_schema_extra=without_default)
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=16)] = Field(
        default=[], description="Further requirements.", json_schema_extra=without_default
    )

    @property
    def is_empty(self) -> bool:
        """Whether it selects everything."""
        return not (self.match_labels or self.match_expressions)

    def manifest(self) -> dict[str, Any]:
        """The selector in a manifest: only what is set."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def is_selective(field: str) -> str:
    """The CEL expression that a field of `self` is set and selects less than everything."""
    labels, expressions = f"self.{field}.matchLabels", f"self.{field}.matchExpressions"
    return (
        f"(has(self.{field}) && ((has({labels}) && {labels}.size() > 0)"
        f" || (has({expressions}) && {expressions}.size() > 0)))"
    )


class ScrapeSource(Part):
    """Pods that may read metrics. At least one label is needed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{is_selective('namespaceSelector')} || {is_selective('podSelector')}",
            "an entry without labels would admit every pod; write podSelector or namespaceSelector",
            lambda source: not (source.namespace_selector.is_empty and source.pod_selector.is_empty),
        ),
    )

    namespace_selector: LabelSelector = Field(
        default=LabelSelector(),
        description="Selects namespaces by their labels, for example matchLabels: {kubernetes.io/metadata.name: "
        "monitoring}. Default: the namespace of the object.",
        json_schema_extra=without_default,
    )
    pod_selector: LabelSelector = Field(
        default=LabelSelector(),
        description="Selects pods by their labels, within these namespaces. Default: all pods of these namespaces.",
        json_schema_extra=without_default,
    )
