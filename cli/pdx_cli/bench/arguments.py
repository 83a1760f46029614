"""The arguments of `pdx bench`, and the flags that have no meaning together."""

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pdx_cli import usage
from pdx_cli.bench import options
from pdx_cli.errors import InputError
from pdx_cli.inputs import target
from pdx_cli.inputs.times import duration
from pdx_cli.local.engines import EngineKind

RESULT: Final = "result.json"
SERVER: Final = "write the URL of an OpenAI-compatible server that runs"
"""What to do about a URL at which none answers."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "scale_tokens": 1.0,
    "engine": str(EngineKind.VLLM),
    "duration": 60.0,
    "warm_up": 10.0,
    "repeats": 3,
}
"""Defaults that are not empty, by name of the argument."""
_LOAD: Final = (
    *("isl", "osl", "trace", "scale_tokens", "scale_time", "poisson", "rate", "start_rate", "model", "chat"),
    *("warm_up", "repeats", "seed"),
)
"""Arguments about requests that are sent."""
_CLUSTER: Final = ("namespace", "kubeconfig", "context")
_COMPARED: Final = ("devices", "chunks", "intervals", "ratios", "above")
_ELSEWHERE: Final = ("url", "admin", "advise", *_CLUSTER, "local")
_MEASURED: Final = (
    *("url", "advise", *_LOAD, "compare", "clean", *_COMPARED, "engine", "sim_flags", "object"),
    *("ttft", "tpot", "duration", "output", *_CLUSTER, "local", "admin", "run_dir"),
)
"""Every argument that a saved result does not need."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of the command."""
    positional = target.add_arguments(parser)  # a file is a target here
    positional.completer = None  # type: ignore[attr-defined]
    positional.type = usage.text("name a PDDeployment, a YAML file or a URL, or leave NAME out")
    positional.help = (
        "name of the PDDeployment, a YAML file to run on this machine, or the URL of any OpenAI-compatible server "
        "(default: the only PDDeployment)"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        type=usage.text("write http://HOST:PORT"),
        help="send requests to this URL instead of the gateway's Service",
    )
    parser.add_argument(
        "--advise", action="store_true", help="send no load: estimate the result from live metrics of --duration"
    )
    parser.add_argument(
        "--report", type=usage.file, metavar="FILE", help="write only the report of a saved result again"
    )
    _add_load(parser.add_argument_group("load"))
    _add_comparison(parser.add_argument_group("comparison"))
    _add_measurement(parser.add_argument_group("measurement"))


def _add_load(group: Any) -> None:
    tokens = options.count(1, 10_000_000)
    group.add_argument("--isl", type=tokens, metavar="TOKENS", help="tokens of each prompt (default: 1000)")
    group.add_argument("--osl", type=tokens, metavar="TOKENS", help="tokens of each answer (default: 200)")
    group.add_argument(
        "--trace",
        type=usage.file,
        metavar="FILE",
        help="CSV with arrival_ms, input_tokens, output_tokens, prefix_blocks",
    )
    group.add_argument(
        "--scale-tokens",
        type=options.factor,
        default=_DEFAULTS["scale_tokens"],
        metavar="FACTOR",
        help="multiplies the trace's tokens, such as 1/32",
    )
    group.add_argument(
        "--scale-time", type=options.factor, metavar="FACTOR", help="multiplies the trace's speed; replaces the search"
    )
    group.add_argument("--poisson", action="store_true", help="use random arrival times instead of the trace's")
    group.add_argument(
        "--rate", type=options.rates, default=(), metavar="RATES", help="requests per second; replaces the search"
    )
    group.add_argument("--start-rate", type=options.rate, metavar="RATE", help="rate at which the search begins")
    group.add_argument(
        "--model",
        metavar="NAME",
        type=usage.text("name a model, or leave --model out"),
        help="model to request (default: the one that is served)",
    )
    group.add_argument("--chat", action="store_true", help="use /v1/chat/completions")


def _add_comparison(group: Any) -> None:
    group.add_argument(
        "--compare",
        action="store_true",
        help="measure aggregated engines with several chunk sizes, and split engines at several ratios, one arm "
        "after the other, each under its own name",
    )
    group.add_argument("--clean", action="store_true", help="remove what a killed comparison left, and end")
    group.add_argument(
        "--devices",
        type=options.count(2, 4096),
        metavar="N",
        help="devices of each arm (default: as many as the object)",
    )
    group.add_argument(
        "--chunks",
        type=options.chunks,
        default=(),
        metavar="TOKENS",
        help="chunk sizes of the aggregated arms (default: 512,2048)",
    )
    group.add_argument(
        "--intervals",
        type=options.intervals,
        default=(),
        metavar="STEPS",
        help="also measure aggregated engines that compute prompts only in every so many steps, with the largest "
        "chunks; needs vLLM 0.33 (default: 4, if the version has it)",
    )
    group.add_argument(
        "--ratios",
        type=options.ratios,
        default=(),
        metavar="P:D",
        help="ratios of the split arms, such as 1:3,2:2 (default: by the devices)",
    )
    group.add_argument(
        "--above",
        type=options.count(1, 10_000_000),
        default=0,
        metavar="TOKENS",
        help="also measure an arm that splits only prompts of more than so many tokens",
    )
    group.add_argument(
        "--engine",
        choices=[str(kind) for kind in EngineKind],
        default=_DEFAULTS["engine"],
        help="engines of FILE: real vLLM or simulated (default: %(default)s)",
    )
    group.add_argument(
        "--sim-flags",
        type=options.flags,
        default=(),
        metavar="FLAGS",
        help="further flags of simulated engines, in quotes",
    )
    group.add_argument(
        "--name",
        dest="object",
        metavar="NAME",
        type=usage.text("name a PDDeployment of FILE, or leave --name out"),
        help="the PDDeployment of this name, or NAMESPACE/NAME, if FILE has several",
    )


def _add_measurement(group: Any) -> None:
    group.add_argument(
        "--ttft", type=duration, metavar="TIME", help="longest time to first token (default: spec.slo, 1s)"
    )
    group.add_argument(
        "--tpot", type=duration, metavar="TIME", help="longest time per output token (default: spec.slo, 50ms)"
    )
    group.add_argument(
        "--duration",
        type=duration,
        default=_DEFAULTS["duration"],
        metavar="TIME",
        help="duration of a step, without its warm-up (default: 60s)",
    )
    group.add_argument(
        "--warm-up",
        type=duration,
        default=_DEFAULTS["warm_up"],
        metavar="TIME",
        help="warm-up of each step, which is not counted (default: 10s)",
    )
    group.add_argument(
        "--repeats",
        type=options.count(1, 100),
        default=_DEFAULTS["repeats"],
        metavar="N",
        help="number of searches; the report shows their spread (default: 3)",
    )
    group.add_argument(
        "--seed", type=options.count(0, 2**31), default=0, metavar="N", help="seed of the load (default: 0)"
    )
    group.add_argument(
        "--output", type=usage.directory, metavar="DIR", help="directory of the results (default: bench-NAME-TIME)"
    )
    group.add_argument(
        "-y", "--yes", action="store_true", help="send the load to a PDDeployment of a cluster without asking"
    )


def check(args: argparse.Namespace) -> None:
    """Refuse flags that have no meaning together, and would be ignored; raises InputError."""
    name = args.name or ""
    if args.report is not None:
        if given := [*([name] if name else []), *_given(args, _MEASURED)]:
            raise InputError(f"--report writes the page of a saved run; leave out {given[0]}.")
        return
    is_url, of_file = "://" in name, bool(name) and is_file(name)
    if is_url:
        _check_url(args)
    elif not of_file:
        _check_object(name)
    if not args.compare and (given := _given(args, _COMPARED)):
        raise InputError(f"{given[0]} is for a comparison; add --compare, or leave it out.")
    _check_file(args, of_file=of_file)
    if args.advise and (given := _given(args, (*_LOAD, "compare", "clean"))):
        raise InputError(f"--advise sends no load; leave out {given[0]}.")
    if args.advise and args.output:
        raise InputError("--advise writes no files; leave out --output.")
    if args.url:
        server_url(args.url)
    if args.admin and names_a_server(args):  # otherwise it selects the gateway, which checks it
        target.admin_host(args.admin)
    if args.trace is None and _given(args, ("scale_tokens", "scale_time", "poisson")):
        raise InputError("--scale-tokens, --scale-time and --poisson change a trace; name one with --trace.")


def server_url(url: str) -> str:
    """Return the URL of a server without its user and password; raises InputError."""
    from pdx_cli.bench.load.connection import Server  # not for --help

    return Server.of(url).url


def _check_url(args: argparse.Namespace) -> None:
    url = server_url(args.name)
    if args.url:
        raise InputError("--url and a URL as NAME are the same; write only one of them.")
    if args.advise and args.admin is None:
        raise InputError(f"{url} has no metrics that can be read; --advise needs a gateway of PDX: add --admin.")
    if args.compare or args.clean:
        raise InputError("A URL has no object whose modes can be compared; name a PDDeployment, or a YAML file.")
    if given := _given(args, _CLUSTER):
        raise InputError(f"{given[0]} selects a cluster; leave it out for a URL.")
    if given := _given(args, ("local", "run_dir")):
        raise InputError(f"{given[0]} selects a run of this machine; leave it out for a URL.")


def _check_object(name: str) -> None:
    if ":" in name:
        raise InputError(f"{name} is not the name of a PDDeployment; for a server, write http://{name}.")
    if "/" in name:
        raise InputError(f"There is no file {name}; name a YAML file, a PDDeployment, or a URL with http://.")


def _check_file(args: argparse.Namespace, *, of_file: bool) -> None:
    is_sim = args.engine == EngineKind.SIM
    if not of_file and (args.sim_flags or is_sim):
        raise InputError("--engine and --sim-flags are for a YAML file that runs on this machine; name one.")
    if not of_file and args.object:
        raise InputError("--name selects a PDDeployment of a YAML file; name a file, or leave it out.")
    if args.sim_flags and not is_sim:
        raise InputError("--sim-flags is for simulated engines; add --engine sim, or leave it out.")
    if of_file and (given := _given(args, _ELSEWHERE)):
        raise InputError(f"FILE runs engines of its own on this machine; leave out {given[0]}.")


def check_new(directory: Path) -> None:
    """Refuse a directory that has results, or that cannot have any; raises InputError.

    It creates a directory for a moment: root may write to every directory, but /proc lets nobody create one.
    """
    try:
        if (directory / RESULT).exists():
            raise InputError(f"{directory} has the results of another run; name another directory with --output.")
        nearest = next(each for each in (directory, *directory.absolute().parents) if each.exists())
        Path(tempfile.mkdtemp(prefix=".pdx-", dir=nearest)).rmdir()
    except OSError as error:
        raise InputError(f"{directory} cannot store the results; name another directory with --output.") from error


def _given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Return the flags whose values are not the defaults."""
    found = [name for name in names if (value := getattr(args, name)) and value != _DEFAULTS.get(name)]
    return ["--name" if name == "object" else f"--{name.replace('_', '-')}" for name in found]


def names_a_server(args: argparse.Namespace) -> bool:
    """Whether nothing is to be looked up: a report, a file, or a server by its URL, perhaps with its admin port."""
    name = args.name or ""
    return args.report is not None or "://" in name or is_file(name) or bool(args.admin and args.url)


def sends_to(args: argparse.Namespace) -> str:
    """Return the URL to which requests will be sent; empty if it is looked up, or if none is sent."""
    if args.advise or args.clean:
        return ""
    name = args.name or ""
    return name if "://" in name else args.url if args.url and args.admin else ""


def is_file(name: str) -> bool:
    """Whether the argument names a YAML file, and not a PDDeployment or a URL."""
    return name == "-" or ("://" not in name and (name.endswith((".yaml", ".yml")) or Path(name).is_file()))
