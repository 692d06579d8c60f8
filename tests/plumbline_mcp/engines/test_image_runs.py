"""A job inside a real container: podman starts an image made here, the run is sealed, the rest is closed."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checks import tiny_release
from tests.plumbline_mcp.engines.small_pack import write_pack

IMAGE = "localhost/plumbline-test"
_OWN_CGROUPS = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"',
    "sh",
)
"""Where this machine shows both kinds of cgroups, which crun refuses: a mount namespace with one kind."""


@dataclass(frozen=True)
class Podman:
    """A podman with a store of its own, and the image in it."""

    prefix: tuple[str, ...]
    environ: dict[str, str]
    image: str


def _write_configuration(folder: Path) -> dict[str, str]:
    """A store in ``folder``, and no limit above those that this process has."""
    (folder / "containers.conf").write_text(
        '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=1024:1024", "nproc=2048:2048"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/store"\n'
    )
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }


def _write_root(folder: Path) -> Path:
    """A root file system of folders and links: everything else is mounted from this machine."""
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("usr", "tmp", "proc", "dev", "sys", "etc", "root"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return archive


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    if shutil.which("podman") is None or not Path("/bin").is_symlink():
        pytest.skip("needs podman, and a machine whose /bin is /usr/bin")
    folder = tmp_path_factory.mktemp("podman")
    environ = _write_configuration(folder)
    prefixes: tuple[tuple[str, ...], ...] = ((), _OWN_CGROUPS)
    said = ""
    for prefix in prefixes:
        done = _ask((*prefix, "podman", "import", str(_write_root(folder)), f"{IMAGE}:1"), environ)
        shown = _ask(("podman", "image", "inspect", f"{IMAGE}:1", "--format", "{{.Digest}}"), environ)
        image = f"{IMAGE}@{shown.stdout.strip()}"
        tried = ("podman", "run", "--rm", "-v", "/usr:/usr:ro", "--network", "none", image, "/bin/true")
        done = _ask((*prefix, *tried), environ)
        if done.returncode == 0:
            return Podman(prefix, environ, image)
        said = done.stderr.strip()
    pytest.skip(f"podman starts no container here: {said[-200:]}")


def _ask(command: tuple[str, ...], environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


EXPORT = """
import json, os, shutil, sys
shutil.copytree(job["inputs"]["model"], output, dirs_exist_ok=True)
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
seen = {
    "executable": sys.executable,
    "home": os.path.exists("@HOME@"),
    "outside": refused(job["inputs"]["model"] + "/new"),
    "job": refused(os.path.join(os.environ["PLUMBLINE_RUN"], "job.json")),
    "environment": sorted(os.environ),
    "pid": os.getpid(),
}
open(output + "/seen.json", "w").write(json.dumps(seen))
"""


def _target(folder: Path, podman: Podman) -> Path:
    release = tiny_release.write_release(folder / "release")
    (release / "config.json").write_text("{}")
    save_file({"w": np.arange(4, dtype=np.float32)}, release / "model.safetensors")
    (folder / "workload.jsonl").write_text("{}\n")
    (folder / "private").mkdir()
    write_pack(folder / "pack", EXPORT.replace("@HOME@", str(folder / "private")))
    mounts = [Path("/usr"), Path(sys.base_prefix)]
    sources = ", ".join(f'{{ source = "{path}" }}' for path in mounts)
    target = folder / "target.toml"
    target.write_text(
        'format = 1\nframework = "pack"\nmodel = "release"\nworkload = "workload.jsonl"\nsteps = ["export"]\n'
        f'[environment.image]\nname = "{podman.image}"\nruntime = "podman"\n'
        f'python = "{Path(sys.base_prefix) / "bin" / "python3"}"\nmounts = [{sources}]\n'
    )
    return target


def test_a_job_runs_inside_the_pinned_image_and_leaves_a_sealed_run(podman: Podman, tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = (sys.executable, "-I", "-m", "plumbline_mcp", "onboard", str(_target(tmp_path, podman)))
    done = _ask((*podman.prefix, *program, "--unsigned", "--home", str(home), "--json"), podman.environ)
    result = json.loads(done.stdout)
    assert "verdicts" in result, (result, done.stderr)
    run = home / "runs" / "export-0001"
    exit_ = json.loads((run / "exit" / "rank-00000.json").read_text())
    assert (exit_["code"], exit_["signal"]) == (0, None), (run / "logs/rank-00000.err").read_text()
    seen = json.loads((run / "output" / "seen.json").read_text())
    assert seen["home"] is False  # nothing of this machine but what was named
    assert seen["outside"] == seen["job"] == "Read-only file system"
    assert seen["pid"] < 100  # a process namespace of its own
    assert "PLUMBLINE_RUN" in seen["environment"]
    assert "CONTAINERS_CONF" not in seen["environment"]
    job = json.loads((run / "job.json").read_text())
    assert job["target"]["image"] == podman.image
    assert job["confinement"] == "none (inside a podman container)"
    assert job["interpreter"].startswith(str(home / "images"))
    assert (run / "manifest.json").is_file()
