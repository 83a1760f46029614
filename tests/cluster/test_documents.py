"""What documents show is accepted by a real API server."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_cluster.app.cluster import Cluster
from pdx_cluster.programs.kubernetes import KUBECTL, cluster_programs
from tests.cluster.conftest import new_namespace
from tests.cluster.runtime.harness import install
from tests.documents import BLOCKS, ROOT
from tests.pages import TUTORIALS, blocks, commands_of


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    """The cluster with the CRD."""
    install(control_plane)
    return control_plane


@pytest.fixture(scope="module")
def unchanged_namespace(installed: Cluster) -> Iterator[str]:
    """One namespace for all tests that store nothing."""
    with new_namespace(installed, "documents") as name:
        yield name


@pytest.mark.parametrize("body", [pytest.param(body, id=place) for place, body in BLOCKS])
def test_a_block_of_a_document_is_accepted(installed: Cluster, unchanged_namespace: str, body: dict[str, Any]) -> None:
    strict = ("--dry-run=server", "--validate=strict", "--warnings-as-errors")
    flags = (*strict, "-n", unchanged_namespace, "--filename=-")
    installed.kubectl("apply", *flags, stdin=json.dumps(body))


def test_a_replaced_security_context_is_stored_as_it_is_written(installed: Cluster, namespace: str) -> None:
    """`$patch` means something to kubectl elsewhere."""
    body = next(body for _, body in BLOCKS if "$patch" in json.dumps(body))
    for _ in range(2):
        installed.kubectl("apply", "-n", namespace, "--filename=-", stdin=json.dumps(body))
    name = body["metadata"]["name"]
    stored = json.loads(installed.kubectl("get", "pdd", name, "-n", namespace, "--output=json"))["spec"]["decode"]
    assert stored["podTemplate"] == body["spec"]["decode"]["podTemplate"]


def commands() -> list[Any]:
    """Every command of kubectl and helm in README, tutorials and how-to pages."""
    found = [(place, command) for program in ("kubectl", "helm") for place, command in commands_of(program)]
    return [pytest.param(command, id=f"{place}-{number}") for number, (place, command) in enumerate(found)]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_page_has_flags_that_exist(helm_program: Path, command: list[str]) -> None:
    """With --help, both programs read all flags and do nothing."""
    program = helm_program if command[0] == "helm" else cluster_programs((KUBECTL,))["kubectl"]
    ended = subprocess.run([program, *command[1:], "--help"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_objects_that_pages_apply_are_accepted(installed: Cluster, namespace: str) -> None:
    """The files of the checkout that README and tutorials apply, and those that they write."""
    for page in (ROOT / "README.md", *TUTORIALS):
        for block in blocks(page):
            for file in re.findall(r"^kubectl apply -f (examples/\S+)$", block.commands, re.MULTILINE):
                installed.kubectl("apply", "--dry-run=server", "-n", namespace, f"--filename={ROOT / file}")
            for body in re.findall(r"<<'EOF'\n(.*?)^EOF$", block.commands, re.MULTILINE | re.DOTALL):
                installed.kubectl("apply", "--dry-run=server", "-n", namespace, "--filename=-", stdin=body)
