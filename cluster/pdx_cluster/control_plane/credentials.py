"""Keys, certificates, tokens and kubeconfigs of one cluster; every cluster gets new ones."""

import base64
import json
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError

USERS: Final = {
    "admin": ("pdx-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:pdx", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
    "kwok": ("pdx-kwok", "system:masters"),
}
"""Holder of a token -> Kubernetes user and group."""

_DAYS: Final = "365"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The folder of a cluster's keys; only its owner can read it."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that signs all others."""
        return self.folder / "ca.crt"

    @property
    def tokens(self) -> Path:
        """The API server's --token-auth-file."""
        return self.folder / "tokens.csv"

    def certificate(self, name: str) -> Path:
        """Return the path of a certificate that `create` made."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the path of the certificate's private key."""
        return self.folder / f"{name}.key"

    def kubeconfig(self, holder: str) -> Path:
        """Return the path of the kubeconfig of one of USERS."""
        return self.folder / f"{holder}.kubeconfig"

    def token(self, holder: str) -> str:
        """Return the bearer token of one of USERS."""
        user = USERS[holder][0]
        return next(line.split(",")[0] for line in self.tokens.read_text().splitlines() if line.split(",")[1] == user)


def create(folder: Path, url: str, addresses: tuple[str, ...]) -> Credentials:
    """Create everything for an API server at `url` with these IP addresses."""
    folder.mkdir(parents=True, mode=0o700)
    credentials = Credentials(folder)
    names = ",".join(
        [
            *(f"IP:{address}" for address in addresses),
            *(f"DNS:{name}" for name in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")),
        ]
    )
    _sign(credentials, "ca", "/CN=pdx-cluster", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign")
    for server in ("apiserver", "kubelet"):
        _sign(credentials, server, f"/CN={server}", f"subjectAltName={names}", "extendedKeyUsage=serverAuth")
    _sign(credentials, "kubelet-client", "/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
    # Kubernetes reads only the EC key format of ecparam, not that of genpkey.
    _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", credentials.key("accounts"))
    lines = [f"{secrets.token_hex(16)},{user},{user}{f',{group}' if group else ''}" for user, group in USERS.values()]
    credentials.tokens.write_text("\n".join(lines) + "\n")
    for holder in USERS:
        config = kubeconfig(url, credentials.authority.read_text(), credentials.token(holder))
        credentials.kubeconfig(holder).write_text(config)
    return credentials


def kubeconfig(url: str, authority: str, token: str) -> str:
    """Return a kubeconfig that needs no other file. JSON is valid YAML."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "pdx",
                "cluster": {
                    "server": url,
                    "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
                },
            }
        ],
        "users": [{"name": "pdx", "user": {"token": token}}],
        "contexts": [{"name": "pdx", "context": {"cluster": "pdx", "user": "pdx"}}],
        "current-context": "pdx",
    }
    return json.dumps(document, indent=2) + "\n"


def _sign(credentials: Credentials, name: str, subject: str, *extensions: str) -> None:
    """Create a key and its certificate, signed by the authority; the authority's own certificate signs itself."""
    signer = ("-CA", credentials.authority, "-CAkey", credentials.key("ca")) if credentials.authority.exists() else ()
    # With the system's configuration, every certificate would be an authority.
    config = credentials.folder / f"{name}.cnf"
    always = ("subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid:always")
    sections = "[req]\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\n[ext]\n"
    config.write_text(sections + "\n".join((*always, *extensions)) + "\n")
    _openssl(
        "req", "-x509", "-config", config, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc",
        "-days", _DAYS, "-subj", subject, *signer,
        "-keyout", credentials.key(name), "-out", credentials.certificate(name),
    )  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise MissingError("openssl is missing: install it (Debian: apt-get install openssl).")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed (version 3 or newer is needed): {done.stderr.strip()}")
