"""From the scheduler's message about a pod to its remedy. Pure.

For each node the scheduler stops at its first objection. It checks cordons, taints, selectors and ports before
resources and volumes: a node that lacks a resource has passed the earlier checks, and a node with a taint may have the
resource. So each objection gets its remedy, and a change of the object comes before more nodes. The texts are those of
Kubernetes 1.20 to 1.36.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pdx_operator.status.causes import SURGE, Cause, found, resources, sentence


@dataclass(frozen=True, slots=True)
class _Rule:
    """What to do about an objection. `{field}` stands for the field of the spec, `{what}` for the first group."""

    pattern: str
    remedy: str
    reason: str = "Unschedulable"
    waits: bool = False


_POD: Final = "spec.{field}.podTemplate"
_KUEUE: Final = (
    "kubectl describe workload shows why Kueue does not admit it: free or raise the quota of its ClusterQueue"
)
_SMALLER: Final = _Rule(
    r"Insufficient (?P<what>cpu|memory)",
    "lower {what} in {resources}, free {what}, or add a node that has enough",
)
_DEVICE: Final = _Rule(r"Insufficient (?P<what>[\w./-]+)", "free {what} or add a node")
_RULES: Final = (
    _Rule(
        r'persistentvolumeclaim "?[^" ]+"? not found',
        "create or correct the claim",
        "VolumeNotFound",
    ),
    _Rule(
        r"non-existent pv",
        "the claim's PersistentVolume is gone: restore it, or name another claim, or delete the claim and create it "
        "again (its data is lost)",
        "VolumeNotFound",
    ),
    _Rule(
        r'persistentvolumeclaim "[^"]+" is being deleted',
        f"the claim stays until no pod uses it, old engines included: name another claim in {_POD}; or save the data, "
        "stop the engines, and create it again when it is gone",
        "VolumeInUse",
    ),
    _Rule(
        r"unbound immediate PersistentVolumeClaims",
        "the claim exists and is Pending: kubectl describe pvc shows why; its StorageClass needs a provisioner, or a "
        "volume that fits",
        "VolumeNotBound",
    ),
    _Rule(
        r"enough free storage",
        "the storage behind its StorageClass has too little room: free or extend it, make the claim smaller, or use "
        "another StorageClass",
        "VolumeNotBound",
    ),
    _Rule(
        r"find available persistent volumes to bind|storage ?class .*not found|no class for claim",
        "no volume fits the claim: correct its size, access mode or StorageClass, or add a volume",
        "VolumeNotBound",
    ),
    _Rule(
        r"match PersistentVolume's node affinity|volume node affinity conflict|available volume zone",
        "the claim's volume is on another node or in another zone, which kubectl describe pv shows: bring back or add "
        "a node there, or use a volume that all nodes reach",
        "VolumeElsewhere",
    ),
    _Rule(
        r"ReadWriteOncePod",
        "another pod uses the claim: name another claim, with the access mode ReadWriteMany or ReadOnlyMany",
        "VolumeInUse",
    ),
    _Rule(r"no available disk", "another pod uses the disk: use a volume that several nodes may mount", "VolumeInUse"),
    _Rule(r"max volume count", "no more volumes fit on these nodes: add a node, or mount fewer volumes", "VolumeInUse"),
    _Rule(
        r"waiting for (?:pods's pod group|minCount)",
        "all pods of its gang must exist before one is placed: check that the others are created, or lower minCount",
        waits=True,
    ),
    _Rule(r"waiting for scheduling gates: \[kueue", _KUEUE, waits=True),
    _Rule(
        r"waiting for scheduling gates",
        "who set the gate must remove it",
        waits=True,
    ),
    _Rule(r"waiting for the preemption", "", waits=True),
    _Rule(r"waiting for (?:dynamic resource|resource) .*claim", "", waits=True),
    _Rule(
        r"taint[^,]*disk-pressure",
        "the node's disk is nearly full: remove unused images and logs, or give it a larger disk",
    ),
    _Rule(
        r"taint[^,]*(?:memory|pid)-pressure",
        "the node has too little memory or too many processes: stop what uses them, or use a larger node",
    ),
    _Rule(
        r"taint[^,]*(?:not-ready|unreachable|network-unavailable|uninitialized|out-of-service)",
        "repair the node: kubectl describe node shows why it is not ready",
    ),
    _Rule(
        r"were unschedulable|taint \{node\.kubernetes\.io/unschedulable",
        "a node is cordoned: kubectl uncordon it after its maintenance",
    ),
    _Rule(r"taint \{node-role\.kubernetes\.io/(?:control-plane|master)", ""),
    _Rule(r"taint \{(?:ToBeDeleted|DeletionCandidate|karpenter\.sh/disrupt)", ""),
    _Rule(
        r"taint\(s\)|had taints",
        "kubectl describe node shows the taints: if the nodes are meant for the pod, add their toleration to "
        f"{_POD}; if a node is not ready or cordoned, repair or uncordon it",
    ),
    _Rule(
        r"had (?:untolerated )?taint",
        f"if the nodes with the taint are meant for it, add their toleration to {_POD}",
    ),
    _Rule(
        r"match (?:Pod's )?node affinity|node affinity/selector|match node selector",
        f"correct nodeSelector or affinity in {_POD}, or label the nodes",
    ),
    _Rule(r"requested node name", f"no node has this name: correct or remove nodeName in {_POD}"),
    _Rule(r"node unregistered|NodeUnfitPod", "see the log of the scheduler's extension that gives the other reasons"),
    _Rule(
        r"free ports for the requested pod ports",
        "a pod on the node uses the port of its host: remove hostNetwork and hostPort, or add a node",
    ),
    _Rule(
        r"existing pods anti-affinity rules",
        "pods that run there refuse it by their own anti-affinity: add a node, or weaken the rule of those pods",
    ),
    _Rule(r"anti-affinity rules", f"add a node, or weaken the anti-affinity in {_POD}"),
    _Rule(r"pod affinity rules", f"correct the pod affinity in {_POD}: no node runs a pod that it names"),
    _Rule(
        r"topology spread constraints \(missing",
        f"no node has the label that topologyKey names: correct topologyKey in {_POD}, or label the nodes with it",
    ),
    _Rule(
        r"topology spread constraints",
        f"the pods would be spread too unevenly: raise maxSkew or set whenUnsatisfiable: ScheduleAnyway in {_POD}, or "
        "add a node",
    ),
    _Rule(
        r"Too many pods",
        "the nodes run as many pods as they may: remove pods, add a node, or raise maxPods of the kubelet",
    ),
    _Rule(
        r'resourceclaim "?[^" ]+"? is being deleted',
        "the ResourceClaim stays while a pod uses it, old engines included: name another claim or a template in "
        f"resourceClaims of {_POD}, or stop the engines and create it again when it is gone",
    ),
    _Rule(
        r'resourceclaim(?:template)? "?[^" ]+"? (?:not found|does not exist)',
        f"create the ResourceClaim that resourceClaims in {_POD} names, or correct the name",
    ),
    _Rule(
        r"deviceclass(?: .*)? (?:not found|does not exist)|device class .*(?:not found|does not exist)",
        "install the driver of the device, which brings the DeviceClass, or correct its name in the ResourceClaim",
    ),
    _Rule(
        r"cannot allocate all claims|resourceclaim not available|resourceclaim cannot be allocated|claim .*in use",
        "no node has the devices of its ResourceClaims free: free one, add a node, or correct the claim's selectors",
    ),
    _Rule(
        r"Insufficient (?:ephemeral-storage)", "lower the request of ephemeral-storage, or add nodes with larger disks"
    ),
    _SMALLER,
    _DEVICE,
    _Rule(r"0/0 nodes are available|no nodes available", "the cluster has no nodes: add one"),
    _Rule(r"node\(s\) had unknown conditions", "repair the node: kubectl describe node shows why it is not ready"),
)
"""The first rule whose pattern an objection contains applies. An empty remedy: the node is not meant for the pod."""
_SCARCE: Final = (
    *("free ports", "anti-affinity", "Too many pods", "cannot allocate", "ReadWriteOncePod", "Insufficient"),
    *("max volume count", "kueue", "too unevenly"),
)
"""Objections that end when an old engine does."""


def unplaced(text: str, field: str, *, may_use_surge: bool) -> Cause:
    """The cause of a pod without a node. `text` is the message of its condition PodScheduled."""
    message = sentence(text)
    objections = _objections(message)
    rules = _distinct(objections)
    remedies = [_filled(rule, what, field) for rule, what in rules if rule.remedy]
    if may_use_surge and remedies and any(word in message or word in remedies[-1] for word in _SCARCE):
        remedies[-1] += SURGE
    if rules and all(rule.waits for rule, _ in rules):
        return found("wait", "Queued", "; ".join((f"it waits ({message})", *filter(None, ("; or ".join(remedies),)))))
    if len(rules) > 1 and rules[0][0].reason == "VolumeElsewhere":
        there = "tolerations, nodeSelector and affinity in spec."
        remedies[1:] = [f"if it is on one of the other nodes, let the pod run there: {there}{field}.podTemplate"]
    volume = next((rule.reason for rule, _ in rules if rule.reason != "Unschedulable"), "")
    if volume:
        what = "does not exist" if volume == "VolumeNotFound" else "cannot be used"
        return _of_volume(volume, f"its volume {what} ({message}); {'; or '.join(remedies)}")
    lacking = [what for rule, what in rules if what]
    if len(rules) == 1 and lacking:
        free = "a free" if "/" in lacking[0] else "enough free"
        return found("place", "Unschedulable", f"no node has {free} {lacking[0]} ({message}); {_lacking(remedies[0])}")
    if not remedies:
        remedies = [f"change the nodes, or nodeSelector and tolerations in spec.{field}.podTemplate"]
    return found("place", "Unschedulable", f"no node may take it ({message}); {'; or '.join(remedies)}")


def gated(gates: tuple[str, ...]) -> Cause:
    """The cause of a pod whose scheduling gates are closed."""
    which = f"scheduling gate{'s' if gates[1:] else ''} {', '.join(gates)}" if gates else "scheduling gate"
    remedy = f"; {_KUEUE}" if any(gate.startswith("kueue") for gate in gates) else ""
    return found("wait", "Queued", f"it waits for its queue ({which}){remedy}")


def _of_volume(reason: str, text: str) -> Cause:
    match reason:
        case "VolumeNotFound":
            return found("volume", "VolumeNotFound", text)
        case "VolumeNotBound":
            return found("volume", "VolumeNotBound", text)
        case "VolumeElsewhere":
            return found("volume", "VolumeElsewhere", text)
        case _:
            return found("volume", "VolumeInUse", text)


def _lacking(remedy: str) -> str:
    """Without the name of the resource, which precedes."""
    return re.sub(r"^free [\w./-]+ or", "free one or", remedy)


def _objections(message: str) -> Iterator[str]:
    """Each objection without its number of nodes; or the message, if it is about the pod and not about nodes."""
    rest = message.partition(" nodes are available: ")[2].strip(". ")
    for objection in re.split(r", (?=\d+ )", rest or message):
        yield re.sub(r"^\d+ ", "", objection)


def _distinct(objections: Iterator[str]) -> list[tuple[_Rule, str]]:
    """The rules in force, in the order of `_RULES`, each once: of several resources a device, which names a vendor."""
    matches: dict[_Rule, str] = {}
    for objection in objections:
        for rule in _RULES:
            if match := re.search(rule.pattern, objection):
                what = match.groupdict().get("what") or ""
                before = matches.get(rule, "")
                matches[rule] = what if "/" in what and "/" not in before else before or what
                break
    if "/" in matches.get(_DEVICE, ""):
        matches.pop(_SMALLER, None)
    return [(rule, matches[rule]) for rule in _RULES if rule in matches]


def _filled(rule: _Rule, what: str, field: str) -> str:
    return rule.remedy.replace("{field}", field).replace("{what}", what).replace("{resources}", resources(field))
