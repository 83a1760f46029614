"""From the API server's refusal of a pod to its remedy. Pure."""

import re
from typing import Final

from pdx_operator.status.causes import SURGE, Cause, found, sentence

_NAMES: Final = (
    (re.compile(r'^pods "[^"]*" is forbidden: '), ""),
    (re.compile(r'^Pod "[^"]*" is invalid: '), ""),
    (re.compile(r"\b(?:resource )?Pod/\S+"), "its pod"),
    (re.compile(r'(?<=\bpod) "?[\w.-]+-[a-z0-9]{5}"?(?=[ :,.])'), ""),
)
"""Where messages name the pod. Each attempt has another name, and a status must not change with it."""
_WEBHOOK: Final = re.compile(r'failed calling webhook "([^"]+)"')
_MISSING: Final = re.compile(r"(?:limits|requests)\.[\w./-]+|\b(?:cpu|memory)\b")


def refused(failure: str, field: str, *, may_use_surge: bool) -> Cause:
    """The cause of a pod that the API server refuses. `field` of the spec describes it."""
    message = failure
    for name, instead in _NAMES:
        message = name.sub(instead, message)
    return _quota(message, field, may_use_surge) or _limits(message, field) or _other(message, field)


def _quota(message: str, field: str, may_use_surge: bool) -> Cause | None:
    words, pod = sentence(message), f"the namespace's quota refuses its pod ({sentence(message)})"
    if "failed quota" in words and (missing := _MISSING.findall(words.partition("must specify")[2])):
        fields = " and ".join(name if "." in name else f"requests.{name}" for name in dict.fromkeys(missing))
        return found("refused", "QuotaExceeded", f"{pod}; set {fields} in spec.{field}.resources")
    if "exceeded quota" in words:
        surge = SURGE if may_use_surge else ""
        return found("refused", "QuotaExceeded", f"{pod}; raise the quota or free something{surge}")
    if "insufficient quota" in words:
        text = f"{pod}; add a quota for its priority class to the namespace, or use another priorityClassName"
        return found("refused", "QuotaExceeded", text)
    return None


def _limits(message: str, field: str) -> Cause | None:
    """A LimitRange, or a request above a limit that it has added."""
    words = sentence(message)
    if above := re.search(r"resources\.requests: Invalid value: .*must be less than or equal to (\S+) limit", words):
        text = f"its request is above its limit ({words}); set spec.{field}.resources.limits.{above[1]}"
        return found("refused", "LimitRange", f"{text}, or raise the default of the namespace's LimitRange")
    if limit := re.search(r"(maximum|minimum) ([\w./-]+) usage per (Container|Pod|PersistentVolumeClaim)", words):
        how = "lower" if limit[1] == "maximum" else "raise"
        text = f"the namespace's LimitRange refuses its pod ({words}); {how} {limit[2]} in spec.{field}.resources"
        return found("refused", "LimitRange", f"{text}, or change the LimitRange")
    if "max limit to request ratio" in words:
        text = f"the namespace's LimitRange refuses its pod ({words}); bring requests and limits in"
        return found("refused", "LimitRange", f"{text} spec.{field}.resources closer together")
    return None


def _other(message: str, field: str) -> Cause:
    words = sentence(message)
    if hook := _WEBHOOK.search(message):
        text = f"the admission webhook {hook[1]} does not answer ({words}); repair or remove it"
        return found("refused", "PodRefused", text)
    if "violates PodSecurity" in message:
        level = f"the namespace's Pod Security level refuses its pod ({words})"
        text = f"{level}; change securityContext in spec.{field}.podTemplate, or the namespace's label"
        return found("refused", "PodRefused", f"{text} pod-security.kubernetes.io/enforce")
    if "security context constraint" in message:
        text = f"no SCC admits its pod ({words}); see OpenShift in docs/operator/platforms.md"
        return found("refused", "PodRefused", text)
    if account := re.search(r'serviceaccount "([^"]+)" not found', message):
        return found("refused", "PodRefused", f"the ServiceAccount {account[1]} does not exist; create it")
    if priority := re.search(r"no PriorityClass with name (\S+) was found", message):
        text = f"the PriorityClass {priority[1]} does not exist; create it, or correct priorityClassName"
        return found("refused", "PodRefused", f"{text} in spec.{field}.podTemplate")
    if "RuntimeClass" in message and "not found" in message:
        text = f"its RuntimeClass does not exist ({words}); install it, or correct runtimeClassName"
        return found("refused", "PodRefused", f"{text} in spec.{field}.podTemplate")
    if "is being terminated" in message:
        return found("refused", "PodRefused", f"its namespace is being deleted ({words})")
    return found("refused", "PodRefused", f"the cluster refuses its pod: {words}")
