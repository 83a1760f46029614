"""The kubeconfig that kubectl would use: the chosen context, its credentials, and what is wrong with them."""

import ast
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config.kube_config import KubeConfigMerger

from pdx_api.kube.environment import ProxyError, proxy_of, url_problem
from pdx_api.user_info import shown_url
from pdx_cli.errors import InputError
from pdx_cli.inputs.target import check_kubeconfig, kubeconfig_paths

_UNUSABLE: Final = (
    config.ConfigException, yaml.YAMLError, OSError, TypeError, ValueError, AttributeError, KeyError
)  # fmt: skip
"""What the client library raises for a file that is not a whole kubeconfig."""
_LIBRARY: Final = logging.getLogger("kubernetes.aio.config.kube_config")
_FILES: Final = (
    ("user", "client-certificate", "client-certificate-data"),
    ("user", "client-key", "client-key-data"),
    ("user", "tokenFile", "token"),
    ("cluster", "certificate-authority", "certificate-authority-data"),
)
"""Section -> its field with the name of a file, and the field that the client library reads instead, if it is set."""
_TEXTS: Final = (
    ("cluster", ("server", "proxy-url", "tls-server-name", "certificate-authority", "certificate-authority-data")),
    ("user", ("token", "tokenFile", "username", "password")),
    ("user", ("client-certificate", "client-certificate-data", "client-key", "client-key-data")),
)
"""Section -> its fields that are texts."""
_URLS: Final = ("server", "proxy-url")
"""Fields of a cluster that are URLs."""
ANOTHER: Final = "or choose another context with --context."
"""The end of a sentence about a context that cannot be used."""


@dataclass(frozen=True, slots=True)
class Section:
    """A user or a cluster of a kubeconfig."""

    name: str
    fields: Mapping[str, Any]
    folder: Path
    """Of the file that has it: relative paths in it begin there."""


@dataclass(frozen=True, slots=True)
class Context:
    """A context of a kubeconfig."""

    name: str
    namespace: str
    sections: Mapping[str, Section]
    """user and cluster, as far as the kubeconfig has them."""


async def load(kubeconfig: str | None, name: str | None) -> tuple[client.Configuration, Context]:
    """Read the context of that name, or the current one, as kubectl does; raises InputError."""
    check_kubeconfig(kubeconfig)
    paths = kubeconfig_paths(kubeconfig)
    chosen = _context(paths, name)
    if wrong := _wrong_field(chosen):
        raise InputError(f"{paths}: {wrong}, {ANOTHER}")
    settings = client.Configuration()
    try:
        with _errors() as errors:
            await config.load_kube_config(paths, context=name, client_configuration=settings)  # type: ignore[no-untyped-call]
    except _UNUSABLE as error:
        if missing := _missing_file(chosen):
            raise InputError(f"{paths}: {missing} does not exist; correct the path, {ANOTHER}") from error
        text = f"The context {chosen.name} of {paths} has no usable cluster and user"
        raise InputError(f"{text}; correct it, or choose another with --context.") from error
    if errors and not settings.api_key.get("BearerToken"):
        raise InputError(_plugin_error(chosen, errors[0]))
    try:
        settings.proxy = settings.proxy or proxy_of(settings.host)
    except ProxyError as error:
        raise InputError(f"The environment variable {error}; write http://HOST:PORT, or unset it.") from error
    return settings, chosen


def _context(paths: str, name: str | None) -> Context:
    """Return the context of that name, or the current one; raises InputError."""
    try:
        merged = KubeConfigMerger(paths).config.value  # type: ignore[no-untyped-call]
        contexts = {str(each.value["name"]): each.value.get("context") or {} for each in merged["contexts"]}
        if not contexts:
            raise KeyError("contexts")
        chosen = str(merged.get("current-context") or "") if name is None else name
        if chosen in contexts:
            return _described(merged, chosen, contexts[chosen])
    except _UNUSABLE as error:
        text = f"{paths} is not a kubeconfig with a current context, its cluster and its user"
        raise InputError(f"{text}; name another file with --kubeconfig.") from error
    names = ", ".join(contexts)
    if name is not None:
        raise InputError(f"{paths} has no context {name}; it has: {names}.")
    problem = f": the current-context {chosen} does not exist" if chosen else " has no current-context"
    raise InputError(f"{paths}{problem}; it has: {names}; choose one with --context.")


def _described(merged: Mapping[str, Any], name: str, context: Mapping[str, Any]) -> Context:
    sections = {}
    for kind in ("user", "cluster"):
        found = next((each for each in merged[f"{kind}s"] if each.value["name"] == context.get(kind)), None)
        fields = found.value.get(kind) if found is not None else None
        if found is not None and isinstance(fields, dict):
            sections[kind] = Section(str(context[kind]), fields, Path(found.path).absolute().parent)
    return Context(name, str(context.get("namespace") or "default"), sections)


def _wrong_field(context: Context) -> str:
    """Return which field has a value that the client library cannot use, and what to write; empty if none has."""
    for kind, names in _TEXTS:
        section = context.sections.get(kind)
        fields = section.fields if section is not None else {}
        for field in names:
            value = fields.get(field)
            if value is not None and not isinstance(value, str):
                return f"the {field} of {kind} {section and section.name} is not a text; correct it"
            if field in _URLS and value is not None and (problem := url_problem(value)):
                subject = f"the {field} {shown_url(value)}".rstrip()
                return (
                    f"{subject} of {kind} {section and section.name} is not a URL: {problem}; write https://HOST:PORT"
                )
    return ""


def _missing_file(context: Context) -> str:
    """Return which file of the credentials does not exist; empty if none is missing."""
    for kind, field, data in _FILES:
        section = context.sections.get(kind)
        if section is None or data in section.fields:
            continue
        path = section.fields.get(field)
        if isinstance(path, str) and not (section.folder / path).is_file():
            return f"the {field} {path} of {kind} {section.name}"
    return ""


@contextmanager
def _errors() -> Iterator[list[str]]:
    """Collect what the client library logs about a credential plugin. It goes on without credentials."""
    found: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        found.append(record.getMessage())
        return False

    _LIBRARY.addFilter(collect)
    try:
        yield found
    finally:
        _LIBRARY.removeFilter(collect)


def _plugin_error(context: Context, error: str) -> str:
    """Return the sentence about a credential plugin that gives no credentials; `error` is the client library's text."""
    user = context.sections["user"]
    command = str((user.fields.get("exec") or {}).get("command"))
    subject = f"The command {command} of user {user.name}"
    if shutil.which(command) is None:
        return f"{subject} does not exist; install it, {ANOTHER}"
    if ended := re.fullmatch(r"exec: process returned (-?\d+)(?:\. (b['\"].*))?", error, re.DOTALL):
        lines = ast.literal_eval(ended[2]).decode(errors="replace").splitlines() if ended[2] else []
        reason = f": {lines[-1].strip().rstrip('.')}" if lines else ""
        return f"{subject} ends with code {ended[1]}{reason}; log in again, {ANOTHER}"
    return f"{subject} returns no credentials ({error.removeprefix('exec: ').rstrip('.')}); correct it, {ANOTHER}"
