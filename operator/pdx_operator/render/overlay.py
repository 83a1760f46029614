"""The `podTemplate` overlay, merged into a rendered pod template as Kubernetes merges a strategic patch.

Maps merge deeply, lists of named elements merge by name, any other list is replaced, and `null` deletes.
`$patch: delete` removes an element or empties a map; `$patch: replace` replaces the whole map or list. A volume with
another kind of source loses its previous source, as with `kubectl apply`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdx_api.names import GROUP
from pdx_operator.render.merge_keys import POD_TEMPLATE, UNIONS

Template = dict[str, Any]

DIRECTIVE: Final = "$patch"
_TOP: Final = {"metadata": ("labels", "annotations"), "spec": None}


class OverlayError(ValueError):
    """An overlay cannot be applied. The message is one sentence for the user."""


def overlaid(template: Template, overlay: Mapping[str, Any], *, container: str, where: str) -> Template:
    """Merge an overlay into a template. `container` is the container that PDX writes; `where` is the overlay's path.

    Raises OverlayError when the overlay is no pod template, or changes a field that PDX owns.
    """
    _check_shape(overlay, where)
    merged = _merge_map(template, overlay, where)
    _check_owned(template, merged, container, where)
    return merged


def _check_shape(overlay: Mapping[str, Any], where: str) -> None:
    for key, value in overlay.items():
        if key not in _TOP:
            raise OverlayError(f"{where}.{key} does not exist; an overlay holds metadata and spec")
        if value is not None and not isinstance(value, Mapping):
            raise OverlayError(f"{where}.{key} is {value!r:.80}; write a mapping")
        fields = _TOP[key]
        wrong = next((field for field in value or () if fields is not None and field not in fields), None)
        if wrong is not None:
            raise OverlayError(
                f"{where}.{key}.{wrong} cannot be set; an overlay's metadata holds labels and annotations"
            )


def _merge(base: Any, patch: Any, field: str, where: str) -> Any:
    if isinstance(patch, Mapping):
        return _merge_map(base if isinstance(base, Mapping) else {}, patch, where)
    if isinstance(patch, Sequence) and not isinstance(patch, str):
        merge_key = POD_TEMPLATE.get(field)
        if merge_key is None:
            return copy.deepcopy(list(patch))
        return _merge_named(base if isinstance(base, list) else [], patch, merge_key, field, where)
    return patch


def _merge_map(base: Mapping[str, Any], patch: Mapping[str, Any], where: str) -> dict[str, Any]:
    directive = _directive(patch, where)
    if directive == "delete":
        return {}
    merged = {} if directive == "replace" else copy.deepcopy(dict(base))
    for field, value in patch.items():
        if field == DIRECTIVE:
            continue
        if field.startswith("$"):
            raise OverlayError(
                f"{where}.{field} is not supported; the only directive is {DIRECTIVE}: delete or replace"
            )
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merge(merged.get(field), value, field, f"{where}.{field}")
    return merged


def _merge_named(base: Sequence[Any], patch: Sequence[Any], merge_key: str, field: str, where: str) -> list[Any]:
    elements = [_element(element, merge_key, f"{where}[{i}]") for i, element in enumerate(patch)]
    whole = any(merge_key not in element for element in elements)
    merged: dict[Any, Any] = {} if whole else {element[merge_key]: copy.deepcopy(element) for element in base}
    for i, element in enumerate(elements):
        name = element.get(merge_key)
        if name is None:
            continue
        if element.get(DIRECTIVE) == "delete":
            merged.pop(name, None)
            continue
        under = merged.get(name, {})
        if field in UNIONS:
            under = {kept: under[kept] for kept in under if kept in element}
        merged[name] = _merge_map(under, element, f"{where}[{i}]")
    return list(merged.values())


def _element(element: Any, merge_key: str, where: str) -> Mapping[str, Any]:
    """Check an element of a list of named elements. `- $patch: replace` has no name: it applies to the whole list."""
    if not isinstance(element, Mapping):
        raise OverlayError(f"{where} is {element!r:.80}; write a mapping with {merge_key}")
    if dict(element) == {DIRECTIVE: "replace"}:
        return element
    if not isinstance(element.get(merge_key), str | int):
        raise OverlayError(f"{where} has no {merge_key}, which selects the element")
    if element.get(DIRECTIVE) == "replace":
        raise OverlayError(
            f"{where} would replace the whole list; write - {DIRECTIVE}: replace as an element of its own"
        )
    return element


def _directive(patch: Mapping[str, Any], where: str) -> str | None:
    directive = patch.get(DIRECTIVE)
    if directive not in (None, "delete", "replace", "merge"):
        raise OverlayError(f"{where}.{DIRECTIVE} is {directive!r:.80}; write delete or replace")
    return directive


def _check_owned(template: Template, merged: Template, container: str, where: str) -> None:
    for kind in ("labels", "annotations"):
        before, after = (_owned_metadata(side, kind) for side in (template, merged))
        changed = next((key for key in sorted({*before, *after}) if before.get(key) != after.get(key)), None)
        if changed is not None:
            raise OverlayError(f"{where}.metadata.{kind} may not change {changed}: PDX finds its pods by it")
    for kind, name in (("containers", container), *(("initContainers", each) for each in _sidecars(template))):
        _check_container(template, merged, kind, name, where)


def _sidecars(template: Template) -> list[str]:
    return [container["name"] for container in template["spec"].get("initContainers", ())]


def _check_container(template: Template, merged: Template, kind: str, name: str, where: str) -> None:
    before, after = (_container(side, kind, name) for side in (template, merged))
    path = f"{where}.spec.{kind}[{name}]"
    if not after:
        why = "it is what the pod is for" if kind == "containers" else "the engine needs this sidecar"
        raise OverlayError(f"{path} may not be removed: {why}")
    for field in ("command", "args", "restartPolicy"):
        if before.get(field) != after.get(field):
            raise OverlayError(f"{path}.{field} may not change: PDX writes it from the other fields of spec")
    _check_ports(before, after, path)
    for variable in before.get("env", ()):
        if "fieldRef" in variable.get("valueFrom", {}) and after.get("env", [])[:1] != [variable]:
            raise OverlayError(f"{path}.env may not change {variable['name']}: other variables hold its value")


def _owned_metadata(template: Template, kind: str) -> dict[str, Any]:
    metadata = template.get("metadata") or {}
    return {key: value for key, value in (metadata.get(kind) or {}).items() if key.split("/")[0] == GROUP}


def _container(template: Template, kind: str, name: str) -> dict[str, Any]:
    containers = (template.get("spec") or {}).get(kind) or []
    return next((container for container in containers if container.get("name") == name), {})


def _check_ports(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> None:
    ports = after.get("ports", [])
    for port in before.get("ports", ()):
        same_name = [other for other in ports if other.get("name") == port["name"]]
        if len(same_name) != 1 or same_name[0].get("containerPort") != port["containerPort"]:
            raise OverlayError(f"{path}.ports may not change {port['name']}: gateway and engines find each other by it")
