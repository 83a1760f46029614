"""The deployment that a command inspects: one in a cluster, or one that runs on this machine."""

import argparse
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pdx_api.hosts import host_problem
from pdx_api.names import ADMIN_PORT
from pdx_api.user_info import shown_url
from pdx_api.words import did_you_mean
from pdx_cli import usage
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs.names import namespace
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import RECENT_SECONDS, Ending, Run, RunDirectory, default_root, directories, live_runs
from pdx_operator.observed import engine_log

_ADMIN: Final = f"http://127.0.0.1:{ADMIN_PORT}"
LOG_LINES: Final = 400
"""Lines at the end of a log in which an error is looked for."""

WHERE: Final = """\
Without a flag that selects a location, the command inspects what `pdx up` runs on this machine: the run of that name,
or, without a name, the only run. If there is none, it inspects the cluster of your kubeconfig.
`kubectl pdx` always inspects the cluster."""


_PLUGIN_WHERE: Final = "It inspects the cluster of your kubeconfig, as kubectl does."


def epilog(parser: argparse.ArgumentParser, text: str) -> str:
    """Return the end of a command's help. `kubectl pdx` shows only examples of a cluster, with its own name."""
    if not parser.prog.startswith("kubectl"):
        return f"{text}\n\n{WHERE}"
    paragraphs = [part.splitlines() for part in text.split("\n\n")]
    here = re.compile(r"--admin|--local|here$|^ {20,}")
    lines = [line.replace("  pdx ", "  kubectl pdx ") for line in paragraphs[0] if not here.search(line)]
    return "\n\n".join(["\n".join(lines), *("\n".join(part) for part in paragraphs[1:]), _PLUGIN_WHERE])


@dataclass(frozen=True, slots=True)
class Local:
    """A gateway on this machine."""

    name: str
    admin: str
    """Base URL of its admin port."""
    run: Run | None = None
    """The `pdx up` that started it; None if the user gave only the URL."""

    @property
    def names(self) -> Mapping[str, str]:
        """HOST:PORT of an engine -> name of its process."""
        return {p.url.rstrip("/").rpartition("/")[2]: p.name for p in self.run.processes} if self.run else {}


@dataclass(frozen=True, slots=True)
class InCluster:
    """A PDDeployment in a cluster."""

    name: str | None
    """None: the only one in the namespace."""
    namespace: str | None
    """None: the context's namespace."""
    kubeconfig: str | None
    context: str | None


def add_arguments(parser: argparse.ArgumentParser) -> argparse.Action:
    """Add the flags of every command that inspects one deployment, and return NAME. `kubectl pdx` has fewer."""
    name = parser.add_argument(
        "name", nargs="?", metavar="NAME", type=_name, help="name of the PDDeployment (default: the only one)"
    )
    name.completer = _names if parser.prog.startswith("pdx") else _no_names  # type: ignore[attr-defined]
    cluster = parser.add_argument_group("in a cluster")
    cluster.add_argument("-n", "--namespace", metavar="NAME", type=namespace, help="namespace (default: the context's)")
    add_kubeconfig(cluster)
    parser.set_defaults(local=False, admin=None, run_dir=None)
    if parser.prog.startswith("kubectl"):
        return name
    here = parser.add_argument_group("on this machine")
    here.add_argument("--local", action="store_true", help="inspect only what `pdx up` runs here, never a cluster")
    here.add_argument(
        "--admin",
        metavar="URL",
        type=usage.text(f"write http://HOST:PORT, for example {_ADMIN}"),
        help="a gateway's admin port, for example http://127.0.0.1:9090",
    )
    here.add_argument(
        "--run-dir",
        type=usage.existing_run_directory,
        metavar="DIR",
        help=f"parent of the run directories (default: {default_root()})",
    )
    return name


def _names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return what completes NAME: the runs of this machine. Without a completer, files would."""
    return [run.name for each in directories(parsed_args.run_dir or default_root()) if (run := each.read())]


def _no_names(**_: object) -> tuple[()]:
    """Complete nothing: a cluster is not queried for it."""
    return ()


def add_kubeconfig(group: Any) -> None:
    """Add the flags that select a cluster."""
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=usage.text("name a file"),
        help="kubeconfig (default: KUBECONFIG, then ~/.kube/config)",
    )
    group.add_argument(
        "--context",
        metavar="NAME",
        type=usage.text("name a context of the kubeconfig"),
        help="context of the kubeconfig (default: the current one)",
    )


def _name(text: str) -> str:
    usage.text("name a PDDeployment, or leave NAME out")(text)
    if text.endswith((".yaml", ".yml", ".json")):
        raise argparse.ArgumentTypeError(f"{text} is a file; write the name of the PDDeployment in it")
    return re.sub(r"^(pdd|pddeployments?(\.pdx\.dev)?)/(?=.)", "", text)


def target_of(args: argparse.Namespace, instead: str = "") -> Local | InCluster:
    """Return the deployment that the flags select; raises CommandError with code 2.

    `instead` is what to name where nothing is selected and nothing runs.
    """
    cluster_flags = [f"--{flag}" for flag in ("namespace", "kubeconfig", "context") if getattr(args, flag)]
    here = (("--local", args.local), ("--admin", args.admin), ("--run-dir", args.run_dir))
    here_flags = [flag for flag, value in here if value]
    if cluster_flags and here_flags:
        raise CommandError(
            f"{cluster_flags[0]} selects a cluster and {here_flags[0]} this machine; use only one of them.", code=2
        )
    if args.admin:
        if others := [*([args.name] if args.name else []), *(flag for flag in here_flags if flag != "--admin")]:
            raise InputError(f"--admin selects a gateway by its URL; leave out {' and '.join(others)}.")
        return Local(admin_host(args.admin), args.admin.rstrip("/"))
    if not cluster_flags and (here_flags or not args.plugin):
        runs = live_runs(args.run_dir or default_root())
        found = local_of(runs, args.name)
        if found is not None:
            return found
        if here_flags or not has_kubeconfig():
            if not instead or args.name or here_flags:
                _check_ended(args.run_dir or default_root(), args.name, time.time())
            raise _no_run(runs, args.name, instead, only_here=bool(here_flags))
    check_kubeconfig(args.kubeconfig)
    return InCluster(args.name, args.namespace, args.kubeconfig, args.context)


def _no_run(runs: Sequence[Run], name: str | None, instead: str, *, only_here: bool) -> InputError:
    """Return the error about a run that does not exist; `only_here`: a flag excludes a cluster."""
    if name and (hint := did_you_mean(name, [run.name for run in runs])):
        return InputError(f"No local run is named {name}; {hint}")
    if only_here:
        what = f"No `pdx up` named {name} runs" if name else "No `pdx up` runs"
        return InputError(f"{what} on this machine; start one with `pdx up FILE`.")
    what = f"No local run named {name} was found" if name else "No local run was found"
    paths = os.environ.get("KUBECONFIG")
    problem = "is not a file" if paths and Path(paths).expanduser().exists() else "does not exist"
    named = f"; KUBECONFIG names {paths}, which {problem}" if paths else ""
    instead = instead if instead and not name else "start one with `pdx up FILE`, or name a cluster with --kubeconfig"
    return InputError(f"{what}, and no kubeconfig: {instead}{named}.")


def ended(local: Local, now: float) -> InputError | None:
    """Return how the run has ended since it was found, with its logs; None if it still runs, or is no run."""
    if local.run is None or not local.run.processes:
        return None
    directory = RunDirectory(Path(local.run.processes[0].log).parent.parent)
    if not directory.path.is_dir() or directory.live() is not None:
        return None
    return _ended_error(directory.ending(), directory.logs, now)


def _ended_error(ending: Ending, logs: Path, now: float) -> InputError:
    rest = f"Its logs are in {logs}; start it again with `pdx up FILE`."
    return InputError(f"{ending.sentence(now)} {rest}", tuple(_errors(logs)))


def _check_ended(root: Path, name: str | None, now: float) -> None:
    """Refuse a run that has ended, with its end and its logs: the one of that name, or the last one if it is recent."""
    ended = [(each.ending(), each.logs) for each in directories(root, ended=True)]
    for ending, logs in sorted(ended, key=lambda each: -each[0].at):
        if ending.name == name or (name is None and ending.at >= now - RECENT_SECONDS):
            raise _ended_error(ending, logs, now)


def _errors(logs: Path) -> Iterator[str]:
    """Yield the last error of each log that has one."""
    for log in sorted(logs.glob("*.log")):
        excerpt = engine_log.read("\n".join(tail(log, LOG_LINES)))
        if excerpt.is_error:
            yield f"{log.stem}: {excerpt.line}"


def kubeconfig_paths(kubeconfig: str | None) -> str:
    """Return the file, or the files that KUBECONFIG lists, as kubectl looks for them."""
    return kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def has_kubeconfig(kubeconfig: str | None = None) -> bool:
    """Whether a cluster is configured."""
    files = kubeconfig_paths(kubeconfig).split(os.pathsep)
    return any(Path(file).expanduser().is_file() for file in files if file)


def check_kubeconfig(kubeconfig: str | None) -> None:
    """Refuse a path without a file, before the library is imported, which would print a line for it."""
    if not has_kubeconfig(kubeconfig):
        paths = kubeconfig_paths(kubeconfig)
        problem = "is not a file" if Path(paths).expanduser().exists() else "does not exist"
        raise InputError(f"No cluster is configured: {paths!r} {problem}; name a file with --kubeconfig.")


def local_of(runs: Sequence[Run], name: str | None) -> Local | None:
    """Return the run of that name, or the only run; None if there is none."""
    found = [run for run in runs if name in (None, run.name)]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(run.name for run in found)
        raise CommandError(f"Several deployments run on this machine; name one of {names}.", code=2)
    return Local(found[0].name, found[0].admin, found[0])


def admin_host(url: str) -> str:
    """Return the host of an admin port's URL, perhaps with a port; raises InputError."""
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:  # a port that does not exist
        is_usable = False
    if not is_usable or parts.scheme != "http" or re.search(r"[\s?#@]", url):
        shown = shown_url(url)
        shown = repr(shown) if re.search(r"\s", shown) else shown
        raise InputError(
            f"--admin {shown} is not the URL of an admin port; write http://HOST:PORT, for example {_ADMIN}."
        )
    if problem := host_problem(parts.hostname or ""):
        raise InputError(f"--admin {shown_url(url)} names no host: {problem}; write for example {_ADMIN}.")
    return parts.netloc
