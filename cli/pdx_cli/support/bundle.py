"""The files of a support bundle: state, conditions, events, logs, metrics and versions of one deployment. Pure."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from pdx_cli.checks.findings import Finding
from pdx_cli.sources.observation import Engine, Gateway, Observation
from pdx_cli.support import redaction

README: Final = """\
Support bundle of `pdx doctor`.

report.txt, findings.json   what was found
versions.json               versions of pdx, Python, vLLM and of the operator's images
object.yaml                 the PDDeployment with its conditions (in a cluster)
cluster.json                pods, Deployments, Events, rights, names of Secrets (in a cluster)
gateways/, engines/         state, transfer probes, arguments, metrics and the end of the log of each

Values of keys, tokens and passwords, of unknown environment variables, prompts and answers were replaced by [removed],
and copies of the object in its annotations were left out. Names of models, hosts and namespaces are still there, and a
secret in an unusual form may be: read the files before you pass them on.
"""


def files_of(
    observation: Observation, findings: Sequence[Finding], report: str, versions: Mapping[str, Any]
) -> dict[str, str]:
    """Return the content of each file, by its path in the bundle."""
    engines = {e.name: e.version for e in observation.engines}
    files = {
        "README.txt": README,
        "report.txt": redaction.text(report),
        "findings.json": _json([dataclasses.asdict(finding) for finding in findings]),
        "versions.json": _json({**versions, "vllm": engines, "images": _images(observation)}),
    }
    if observation.body:
        body = redaction.redacted(_without_managed_fields(observation.body))
        files["object.yaml"] = yaml.safe_dump(json.loads(json.dumps(body, default=str)), sort_keys=False, width=120)
        files["cluster.json"] = _json(_cluster(observation))
    for gateway in observation.gateways:
        files |= {f"gateways/{gateway.name}/{name}": page for name, page in _gateway(gateway).items() if page}
    for engine in observation.engines:
        files |= {f"engines/{_safe(engine.name)}/{name}": page for name, page in _engine(engine).items() if page}
    for process in observation.dead:
        files[f"engines/{_safe(process.name)}/log.txt"] = redaction.text(process.log)
    for pod, log in observation.ended_logs.items():
        files[f"ended/{_safe(pod)}/log.txt"] = redaction.text(log)
    return files


def _gateway(gateway: Gateway) -> dict[str, str]:
    return {
        "state.json": _json(gateway.state) if gateway.state else "",
        "transfer-probes.json": _json(gateway.verification) if gateway.verification else "",
        "problem.txt": redaction.text(gateway.problem),
        "metrics.txt": redaction.text(gateway.metrics),
        "log.txt": redaction.text(gateway.log),
    }


def _engine(engine: Engine) -> dict[str, str]:
    args = redaction.arguments(list(engine.args))
    return {
        "arguments.txt": "".join(f"{arg}\n" for arg in args),
        "problem.txt": redaction.text(engine.problem),
        "metrics.txt": redaction.text(engine.metrics),
        "log.txt": redaction.text(engine.log),
    }


def _cluster(observation: Observation) -> dict[str, Any]:
    names = ("operator", "pools", "stalled", "gateway", "pods", "secrets", "rights", "events", "unseen")
    values = {name: getattr(observation, name) for name in names}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any, level: int = 0) -> Any:
    if level > redaction.LEVELS:
        return redaction.REMOVED
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), level + 1) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, level + 1) for key, entry in value.items()}
    return [_plain(one, level + 1) for one in value] if isinstance(value, list | tuple | set | frozenset) else value


def _images(observation: Observation) -> list[str]:
    pods = _plain(observation.pods)
    found = {c["image"] for pod in pods for c in pod.get("containers") or () if isinstance(c, dict) and c.get("image")}
    return sorted(found)


def _without_managed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != "managedFields"}
    return {**body, "metadata": metadata}


def _json(value: Any) -> str:
    return json.dumps(redaction.redacted(_plain(value)), indent=2, ensure_ascii=False, default=str) + "\n"


def _safe(name: str) -> str:
    """Return a name as a file name: an engine without a process is named by its address."""
    return name.replace(":", "-").replace("/", "-")
