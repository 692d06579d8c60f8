"""Images as interpreters: pinned by content, in launch lines that the runtimes' own parsers take."""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.errors import NotEvaluated
from plumbline_mcp.engines import images
from plumbline_mcp.engines.images import Image, Mount, RuntimeName, check_image, chosen, render
from plumbline_mcp.errors import UsageError

DIGEST = "sha256:" + "ab" * 32
NAME = f"registry.example/team/trainer@{DIGEST}"
GOLDEN = Path(__file__).with_name("images")
CLIENT = {"HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1000"}
MOUNTS = (
    Mount(source=Path("/data/a release")),
    Mount(source=Path("/cache"), target=Path("/kept"), writable=True),
)
SPECS: dict[str, Image] = {
    "docker": Image(name=NAME, runtime="docker", python="/opt/venv/bin/python", variables=("NCCL_DEBUG",)),
    "podman": Image(name=NAME, runtime="podman"),
    "apptainer": Image(name="/images/it's.sif", sha256="cd" * 32),
    "pyxis": Image(name="/images/trainer.sqsh", sha256=f"sha256:{'ef' * 32}"),
}


def rendered(name: RuntimeName, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return render(SPECS[name], name, MOUNTS, CLIENT)


@pytest.mark.parametrize("name", images.RUNTIMES)
def test_the_launch_line_is_the_golden_one(name: RuntimeName, monkeypatch: pytest.MonkeyPatch) -> None:
    text = rendered(name, monkeypatch)
    golden = GOLDEN / f"{name}.golden"
    if os.environ.get("REWRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def options(name: str) -> argparse.ArgumentParser:
    """The documented options of ``docker run``, ``podman run``, ``apptainer exec``, ``srun`` with pyxis."""
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False, exit_on_error=False)
    flags = {
        "docker": ["--rm", "--interactive", "--init", "--read-only"],
        "podman": ["--rm", "--interactive", "--read-only"],
        "apptainer": ["--containall", "--no-home", "--no-privs"],
        "pyxis": [
            "--container-readonly",
            "--no-container-mount-home",
            "--no-container-entrypoint",
            "--no-container-remap-root",
        ],
    }
    container = ["--network", "--tmpfs", "--shm-size", "--entrypoint", "--workdir", "--security-opt"]
    valued = {
        "docker": [*container, "--user"],
        "podman": [*container, "--userns"],
        "apptainer": ["--pwd"],
        "pyxis": [
            "--ntasks",
            "--export",
            "--chdir",
            "--container-image",
            "--container-mounts",
            "--container-workdir",
        ],
    }
    for flag in flags[name]:
        parser.add_argument(flag, action="store_true")
    for option in valued[name]:
        parser.add_argument(option)
    for option in ("--mount", "--env", "--cap-drop", "--bind"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser


_STUB = """#!{python} -I
import json, os, sys
print(json.dumps({{"argv": sys.argv, "env": dict(os.environ)}}))
"""


def started(text: str, folder: Path, environ: dict[str, str], *arguments: str) -> dict[str, Any]:
    """What the rendered program starts: the client of the runtime is replaced by one that tells."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    for client in ("docker", "podman", "apptainer", "srun"):
        (bin_ / client).write_text(_STUB.format(python=sys.executable))
        (bin_ / client).chmod(0o755)
    program = folder / "python"
    program.write_text(re.sub(r"(?<=env -i )PATH=\S+", f"PATH={bin_}:/usr/bin:/bin", text))
    command = ["bash", str(program), *arguments]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environ}, capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


JOB = {"HOME": "/w/runs/r-1/scratch/home", "TZ": "UTC", "PLUMBLINE_RUN": "/w/runs/r-1", "SECRET": "x"}


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_job_sees_its_run_and_its_variables_and_nothing_else(
    name: RuntimeName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = rendered(name, monkeypatch)
    told = started(text, tmp_path, JOB, "-I", "/w/runs/r-1/hooks/rows.py")
    client, verb, *line = told["argv"]
    assert (Path(client).name, verb) == (name, "run")
    parsed = options(name).parse_args(line)
    assert parsed.rest == [NAME, "-I", "/w/runs/r-1/hooks/rows.py"]
    assert sorted(parsed.env) == [f"{key}={JOB[key]}" for key in ("HOME", "PLUMBLINE_RUN", "TZ")]
    closed = "readonly" if name == "docker" else "ro=true"
    assert f"type=bind,source=/w/runs/r-1,target=/w/runs/r-1,{closed}" in parsed.mount
    assert "type=bind,source=/w/runs/r-1/records,target=/w/runs/r-1/records" in parsed.mount
    assert f"type=bind,source=/data/a release,target=/data/a release,{closed}" in parsed.mount
    assert "type=bind,source=/cache,target=/kept" in parsed.mount
    assert parsed.workdir == "/w/runs/r-1/scratch"
    assert told["env"]["HOME"] == "/home/me"
    assert "SECRET" not in told["env"]


def test_a_probe_outside_a_job_mounts_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = started(rendered("podman", monkeypatch), tmp_path, {}, "-I", "-")
    parsed = options("podman").parse_args(told["argv"][2:])
    assert len(parsed.mount) == len(MOUNTS)
    assert (parsed.workdir, parsed.rest) == ("/", [NAME, "-I", "-"])


@pytest.mark.parametrize("name", ["apptainer", "pyxis"])
def test_an_image_file_is_compared_with_its_digest_first(
    name: RuntimeName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ("image.sif" if name == "apptainer" else "image.sqsh")
    file.write_bytes(b"squashed")
    spec = Image(name=str(file), sha256=hashlib.sha256(b"squashed").hexdigest(), python="python3.11")
    text = render(spec, name, MOUNTS, CLIENT)
    told = started(text, tmp_path, JOB, "-I", "x.py")
    line = told["argv"][1:]
    if name == "apptainer":
        assert line[:2] == ["--silent", "exec"]
        parsed = options(name).parse_args(line[2:])
        assert parsed.rest == [str(file), "python3.11", "-I", "x.py"]
        assert told["env"]["APPTAINERENV_HOME"] == JOB["HOME"]
        assert told["env"]["HOME"] == "/home/me"
        assert "/w/runs/r-1:/w/runs/r-1:ro" in parsed.bind
    else:
        parsed = options(name).parse_args(line)
        assert parsed.rest == ["python3.11", "-I", "x.py"]
        assert parsed.container_image == str(file)
        assert "/w/runs/r-1:/w/runs/r-1:ro" in parsed.container_mounts.split(",")
        assert parsed.export.split(",") == ["PATH", "HOME", "PLUMBLINE_RUN", "TZ"]
        assert told["env"]["HOME"] == JOB["HOME"]
    file.write_bytes(b"another")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        started(text, tmp_path, JOB)
    assert b"has another digest than the target pins" in refused.value.stderr


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs the docker command line")
def test_dockers_own_parser_takes_the_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a daemon that cannot be reached the client gets as far as calling it: the line was understood."""
    nowhere = {"HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    text = render(SPECS["docker"], "docker", MOUNTS, nowhere)
    for line, says in ((text, "no.sock"), (text.replace("--read-only", "--read-onli"), "unknown flag")):
        program = tmp_path / "python"
        program.write_text(line)
        done = subprocess.run(["bash", str(program), "-c", "1"], capture_output=True, text=True, check=False)
        assert says in done.stderr


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"name": "trainer:latest"}, "'trainer:latest', which names no content"),
        ({"name": "trainer"}, "names no content"),
        ({"name": "trainer@sha256:abc"}, "names no content"),
        ({"name": "--privileged@" + DIGEST}, "names no content"),
        ({"name": NAME, "runtime": "pyxis"}, "takes no image by digest"),
        ({"name": NAME, "sha256": "ab" * 32}, "carries its digest already"),
        ({"name": "/nowhere/x.sif", "sha256": "ab" * 32}, "there is no image"),
        ({"name": NAME, "variables": ["A=B"]}, "no name of a variable"),
        ({"name": NAME, "mounts": [{"source": "relative"}]}, "absolute path"),
        ({"name": NAME, "mounts": [{"source": "/a,b"}]}, "no colon, comma or quote"),
        ({"name": NAME, "mounts": [{"source": "/nowhere/at/all"}]}, "does not exist"),
    ],
)
def test_what_does_not_pin_or_fit_is_refused(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_image(Image.model_validate(spec))
    assert says in f"{refused.value.message}; {refused.value.next_step}"


def test_an_image_file_needs_its_digest_and_its_own_runtime(tmp_path: Path) -> None:
    file = tmp_path / "image.sif"
    file.write_bytes(b"x")
    with pytest.raises(UsageError, match="has sha256 ''") as refused:
        check_image(Image(name=str(file)))
    assert "sha256sum" in refused.value.next_step
    with pytest.raises(UsageError, match="docker does not run"):
        check_image(Image(name=str(file), sha256="ab" * 32, runtime="docker"))
    check_image(Image(name=str(file), sha256="ab" * 32))


def test_without_a_runtime_an_image_is_not_evaluated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotEvaluated, match="docker is not installed; podman: podman is not installed"):
        chosen(Image(name=NAME))
    assert [each.answers for each in images.runtimes()] == [False] * 4


def test_only_an_image_has_a_runtime(tmp_path: Path) -> None:
    assert images.runtime_of(Path(sys.executable)) is None
