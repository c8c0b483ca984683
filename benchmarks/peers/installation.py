"""The peers' own virtual environment and Node folder, made once and again when a pin changes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalogue import PeerInfo

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
VENV = PROJECT / ".venv-peers"
NODE = VENV / "node"


class NotInstallable(Exception):
    """Why a peer cannot be measured here, in one line."""


def command_of(peer: PeerInfo) -> list[str]:
    """How its program is started; the folder to start it in is the project."""
    if peer.name == "duly":
        return [sys.executable, "-m", "benchmarks.peers.duly_peer"]
    if peer.program.endswith(".mjs"):
        node = shutil.which("node")
        if node is None:
            raise NotInstallable("no `node` on the PATH")
        return [node, str(NODE / peer.program)]
    return [str(VENV / "bin" / "python"), "-m", f"benchmarks.peers.{Path(peer.program).stem}"]


def install(peers: list[PeerInfo]) -> dict[str, str]:
    """Make what is missing; the answer names who cannot be measured, and why."""
    refused: dict[str, str] = {}
    for is_node, install_some in ((False, install_python), (True, install_node)):
        some = [peer for peer in peers if peer.program.endswith(".mjs") == is_node]
        try:
            if some:
                install_some()
        except (NotInstallable, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            refused |= {peer.name: said.strip().splitlines()[-1] for peer in some}
    return refused


def install_python() -> None:
    wanted = (HERE / "requirements.txt").read_text()
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    run([sys.executable, "-m", "venv", str(VENV)])
    python = str(VENV / "bin" / "python")
    quiet = ["--quiet", "--disable-pip-version-check"]
    run([python, "-m", "pip", "install", *quiet, "-r", str(HERE / "requirements.txt")])
    stamp.write_text(wanted)


def install_node() -> None:
    """The program is copied beside its packages: Node looks for them from there."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstallable("no `node` and `npm` on the PATH")
    NODE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "graphile_peer.mjs"):
        wanted, there = (HERE / name).read_text(), NODE / name
        if name == "package.json" and there.exists() and there.read_text() == wanted:
            continue
        there.write_text(wanted)
        if name == "package.json":
            run([npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(NODE)])


def run(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    return ended.stdout


def versions(peers: list[PeerInfo]) -> dict[str, str]:
    """What is really installed, not what was asked for."""
    found: dict[str, str] = {}
    python = VENV / "bin" / "python"
    if python.exists():
        listed = json.loads(run([str(python), "-m", "pip", "list", "--format", "json"]))
        found = {package["name"].lower(): package["version"] for package in listed}
    for peer in peers:
        manifest = NODE / "node_modules" / peer.package / "package.json"
        if manifest.exists():
            found[peer.package] = json.loads(manifest.read_text())["version"]
    return {peer.name: found[peer.package] for peer in peers if peer.package in found}
