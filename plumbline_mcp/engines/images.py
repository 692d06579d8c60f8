"""A container image as a job's interpreter: the launch line of its runtime, with the image pinned by content.

The line is rendered into a small program that stands where an interpreter stands: `probe` and jobs start it
like any Python, and what it starts is the image's. The image is named by digest (a registry image) or by the
digest of its file (apptainer's .sif, enroot's .sqsh): a tag may be moved, so a tag alone is refused.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import jinja2
from pydantic import Field

import checks
from checks.errors import NotEvaluated
from checks.verdict import Frozen
from plumbline_mcp.errors import UsageError

TEMPLATES = Path(checks.__file__).parent.parent / "templates" / "images"
RuntimeName = Literal["docker", "podman", "apptainer", "pyxis"]
RUNTIMES: tuple[RuntimeName, ...] = ("docker", "podman", "apptainer", "pyxis")

_PINNED = re.compile(r"(docker://)?[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"(sha256:)?(?P<hex>[0-9a-f]{64})")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_ANSWER_S = 20.0
_JOB_VARIABLES = (
    *("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    *("HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "LANG", "TZ", "PLUMBLINE_RUN"),
)
"""What a job's own environment says (`plumbline_mcp.engines.launching`) and its container is told too."""
_CLIENT_VARIABLES = (
    *("HOME", "USER", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONFIG"),
    *("DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
    *("REGISTRY_AUTH_FILE", "APPTAINER_CACHEDIR", "SLURM_CONF", "SLURM_JOB_ID"),
)
"""What the runtime's own client needs of ours: where its store, its daemon and its allocation are."""
_RUNTIME = "runtime.txt"
_WRITABLE = ("records", "logs", "exit", "output", "scratch")
"""Folders of a run that its container may write into; the rest of the run is read-only."""


class Mount(Frozen):
    """A folder or file of this machine that the container sees, at the same place unless another is named."""

    source: Path
    target: Path | None = None
    writable: bool = False


class Image(Frozen):
    """The image of a target."""

    runtime: RuntimeName | None = Field(None, description="by default the first that answers")
    name: str = Field(min_length=1, description="NAME@sha256:DIGEST, or the path of a .sif or .sqsh file")
    sha256: str = Field("", description="digest of the file, where the image is one")
    python: str = Field("python3", description="the interpreter inside the image")
    mounts: tuple[Mount, ...] = Field((), description="seen beside the run, the release and the workload")
    variables: tuple[str, ...] = Field((), description="further variables of ours that the job sees")


class Runtime(Frozen):
    """Whether a container runtime can start something here."""

    name: RuntimeName
    version: str = ""
    answers: bool = False
    why: str = ""


_QUESTIONS: dict[RuntimeName, tuple[str, ...]] = {
    "docker": ("docker", "info", "--format", "{{.ServerVersion}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "apptainer": ("apptainer", "version"),
    "pyxis": ("srun", "--help"),
}


def runtime(name: RuntimeName) -> Runtime:
    """Ask a runtime; starts no container."""
    command = _QUESTIONS[name]
    if shutil.which(command[0]) is None:
        return Runtime(name=name, why=f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Runtime(name=name, why=f"{command[0]} does not answer: {type(error).__name__}")
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if name == "pyxis":
        has = "--container-image" in done.stdout
        return Runtime(name=name, answers=has, why="" if has else "srun has no pyxis plugin")
    if done.returncode or not done.stdout.strip():
        errors = done.stderr.strip().splitlines() or ["no answer"]
        return Runtime(name=name, why=errors[-1][:200])
    return Runtime(name=name, version=said[0][:60], answers=True)


def runtimes() -> list[Runtime]:
    """Every runtime with whether it answers."""
    return [runtime(name) for name in RUNTIMES]


def check_image(image: Image) -> None:
    """Raise `UsageError` unless the image is pinned by content and each value can stand in a launch line."""
    if _PINNED.fullmatch(image.name):
        _check_registry(image)
    else:
        _check_file(image)
    for name in image.variables:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a variable", "name it in capitals: NCCL_DEBUG")
    for mount in image.mounts:
        _check_mount(mount)


def _check_registry(image: Image) -> None:
    if image.runtime == "pyxis":
        raise UsageError(
            f"pyxis takes no image by digest (got {image.name!r})",
            "import it with enroot, and name the .sqsh file with its sha256",
        )
    if image.sha256:
        raise UsageError(
            f"sha256 is {image.sha256!r} and the image carries its digest already", "leave sha256 out"
        )


def _check_file(image: Image) -> None:
    if not image.name.endswith((".sif", ".sqsh")):
        raise UsageError(
            f"the image is {image.name!r}, which names no content: a tag may be moved",
            "name it as NAME@sha256:DIGEST (docker images --digests shows it), or name a .sif or .sqsh file",
        )
    wanted = "apptainer" if image.name.endswith(".sif") else "pyxis"
    if image.runtime not in (None, wanted):
        raise UsageError(f"{image.runtime} does not run {image.name!r}", f"its runtime is {wanted}")
    if not Path(image.name).is_file():
        raise UsageError(f"there is no image {image.name}", "name the .sif or .sqsh file that the job runs")
    if not _SHA256.fullmatch(image.sha256):
        raise UsageError(
            f"the image {image.name} has sha256 {image.sha256!r}", f"give what sha256sum {image.name} says"
        )


def _check_mount(mount: Mount) -> None:
    for path in (mount.source, mount.target or mount.source):
        if not path.is_absolute():
            raise UsageError(f"a mount names {path}", "give an absolute path")
        if set(str(path)) & set(":,\n\"'"):
            raise UsageError(f"a mount names {str(path)!r}", "a mounted path holds no colon, comma or quote")
    if not mount.source.exists():
        raise UsageError(f"a mount names {mount.source}, which does not exist", "name what is there")


def chosen(image: Image) -> RuntimeName:
    """The runtime that starts it here. Raises `NotEvaluated` when none that could run it answers."""
    if image.runtime:
        possible: tuple[RuntimeName, ...] = (image.runtime,)
    elif _PINNED.fullmatch(image.name):
        possible = ("apptainer",) if image.name.startswith("docker://") else ("docker", "podman")
    else:
        possible = ("apptainer",) if image.name.endswith(".sif") else ("pyxis",)
    asked = [runtime(name) for name in possible]
    found = next((each.name for each in asked if each.answers), None)
    if found is None:
        reasons = "; ".join(f"{each.name}: {each.why}" for each in asked)
        raise NotEvaluated(
            f"no runtime here starts the image {image.name} ({reasons})",
            f"make {' or '.join(possible)} answer (plumbline doctor says whether it does), "
            "or name an interpreter",
        )
    return found


def render(image: Image, name: RuntimeName, mounts: tuple[Mount, ...], client: Mapping[str, str]) -> str:
    """The program that starts the image's Python. ``client``: what the runtime's client is told."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - a shell script
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    template = environment.from_string((TEMPLATES / f"{name}.sh.j2").read_text(encoding="utf-8"))
    digest = _SHA256.fullmatch(image.sha256)
    named = f"docker://{image.name}" if name == "apptainer" and _is_bare(image.name) else image.name
    return template.render(
        image=named if name == "apptainer" else named.removeprefix("docker://"),
        sha256=digest["hex"] if digest else "",
        python=image.python,
        variables=sorted({*_JOB_VARIABLES, *image.variables}),
        mounts=[_spelled(mount, name) for mount in mounts],
        parts=_WRITABLE,
        client=dict(client),
        rootless=os.geteuid() != 0,
    )


def _is_bare(name: str) -> bool:
    return bool(_PINNED.fullmatch(name)) and not name.startswith("docker://")


def _spelled(mount: Mount, name: RuntimeName) -> str:
    """A mount as the runtime's option takes it."""
    source, target = mount.source, mount.target or mount.source
    if name in ("docker", "podman"):
        closed = ",readonly" if name == "docker" else ",ro=true"
        return f"type=bind,source={source},target={target}" + ("" if mount.writable else closed)
    return f"{source}:{target}" + ("" if mount.writable else ":ro")


def interpreter(image: Image, seen: tuple[Path, ...], folder: Path) -> Path:
    """Write the program that starts the image's Python below ``folder``; returns its path.

    ``seen``: what the job reads (release, workload); each is mounted read-only at its own place. Inside the
    container the same path starts the image's Python, so that a launcher can start ranks with it. Raises
    `UsageError` and `NotEvaluated`.
    """
    check_image(image)
    name = chosen(image)
    read = tuple(Mount(source=path) for path in seen)
    for mount in read:
        _check_mount(mount)
    client = {key: os.environ[key] for key in _CLIENT_VARIABLES if key in os.environ}
    key = [image.model_dump_json(), name, *map(str, seen), *client.values()]
    place = folder / hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
    outer, inner = place / "bin" / "python", place / "inside"
    inner_mount = Mount(source=inner, target=outer)
    text = render(image, name, (*image.mounts, *read, inner_mount), client)
    outer.parent.mkdir(parents=True, exist_ok=True)
    inside = f'#!/bin/sh\nexec {shlex.quote(image.python)} "$@"\n'
    for path, content in ((inner, inside), (outer, text), (place / _RUNTIME, name)):
        path.write_text(content, encoding="utf-8")
        path.chmod(0o755)
    return outer


def runtime_of(python: Path) -> str | None:
    """The container runtime that this interpreter starts its image with; None for any other interpreter."""
    try:
        return (python.parent.parent / _RUNTIME).read_text(encoding="utf-8")
    except OSError:
        return None
