"""Jobs of a user who is not root: the whole contract, the confinement, and one whose id has no name."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from plumbline_mcp.engines.confinement import another_user, landlock
from tests.plumbline_mcp.engines.small_pack import write_pack

ROOT = Path(__file__).resolve().parents[3]
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
BASES = (Path(getattr(sys, "_base_executable", sys.executable)), Path("/usr/bin", VERSION))
BODY = """
import json, os, pathlib
place = pathlib.Path(PLACE)
attempts = {
    "key": lambda: (place / "user/.ssh/id_test").read_text(),
    "database": lambda: (place / "home/plumbline.db").read_bytes(),
    "outside": lambda: (place / "user/new").write_text("x"),
    "job": lambda: pathlib.Path(output, "../job.json").write_text("{}"),
    "signal": lambda: os.kill(VICTIM, 15),
}
found = {}
for name, action in attempts.items():
    try:
        action()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__
pathlib.Path(output, "found.json").write_text(json.dumps(found))
print("held", flush=True)
"""
WAITING = "import time\nprint('begun', flush=True)\ntime.sleep(600)"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@dataclass
class User:
    """Somebody who is not root, with a home, a workspace and an interpreter that may be started."""

    number: int
    place: Path

    def command(self, *arguments: str) -> list[str]:
        """A command as that user, in an environment of its own."""
        known = {
            "PATH": os.defpath,
            "HOME": str(self.place / "user"),
            "TMPDIR": str(self.place / "user"),
            "PLUMBLINE_HOME": str(self.place / "home"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        become = ["setpriv", f"--reuid={self.number}", f"--regid={self.number}", "--clear-groups"]
        return [*become, "env", "-i", *(f"{name}={value}" for name, value in known.items()), *arguments]

    def plumbline(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The program, started by that user."""
        python = str(self.place / "env/bin/python")
        return subprocess.run(
            self.command(python, "-I", "-m", "plumbline_mcp", *arguments),
            cwd=self.place,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )

    def run(self, body: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """A job with that body."""
        pack = write_pack(self.place / "user/pack", body)
        (self.place / "user/model").mkdir(exist_ok=True)
        sides = ("--framework", str(pack), "--model", str(self.place / "user/model"))
        python = ("--python", str(self.place / "env/bin/python"))
        return self.plumbline("run", "export", *sides, *python, "--quiet", "--json", *options)


def may(user: User, *command: str) -> bool:
    return subprocess.run(user.command(*command), capture_output=True, check=False, cwd="/").returncode == 0


def settled(user: User) -> User:
    """The user's home, key and environment of our packages. Skips where that user may not read them."""
    for name in ("user/.ssh", "home"):
        (user.place / name).mkdir(parents=True)
    (user.place / "user/.ssh/id_test").write_text("a key")
    base = next((path for path in BASES if may(user, str(path), "-c", "")), None)
    packages = Path(pytest.__file__).parent.parent
    if base is None or not may(user, "/usr/bin/test", "-r", str(packages / "pydantic/__init__.py")):
        pytest.skip("no other user may read our interpreter and packages here")
    subprocess.run([base, "-m", "venv", "--without-pip", user.place / "env"], check=True)
    site = user.place / f"env/lib/{VERSION}/site-packages"
    (site / "ours.pth").write_text(f"{packages}\n{ROOT}\n")
    for path in [user.place, *user.place.rglob("*")]:
        os.chown(path, user.number, user.number, follow_symlinks=False)
    return user


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="plumbline-user-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def named(place: Path) -> Iterator[User]:
    """A throwaway account."""
    if shutil.which("useradd") is None or shutil.which("setpriv") is None:
        pytest.skip("no useradd or setpriv here")
    name = f"plumbline{os.getpid()}"
    options = ["--no-create-home", "--home-dir", str(place / "user"), "--user-group"]
    number = str(another_user.free_user())
    subprocess.run(["useradd", *options, "--uid", number, name], check=True, capture_output=True)
    try:
        yield settled(User(pwd.getpwnam(name).pw_uid, place))
    finally:
        subprocess.run(["userdel", "--force", name], check=True, capture_output=True)


def test_an_ordinary_users_job_is_held_and_no_other_user_is_offered(named: User) -> None:
    if landlock.version() < 6:
        pytest.skip("landlock cannot hold signals here")
    victim = subprocess.Popen(named.command("/bin/sleep", "60"))
    try:
        body = BODY.replace("PLACE", repr(str(named.place))).replace("VICTIM", str(victim.pid))
        ended = named.run(body, "--confinement", "landlock")
        assert ended.returncode == 0, ended.stderr
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    folder = Path(json.loads(ended.stdout)["folder"])
    found = json.loads((folder / "output/found.json").read_text())
    assert {name for name, result in found.items() if result == "done"} == set()
    assert {path.stat().st_uid for path in folder.rglob("*")} == {named.number}
    refused = named.run(BODY, "--confinement", "uid")
    assert refused.returncode == 3
    assert "only root can start a job as another user" in refused.stdout + refused.stderr


def test_an_ordinary_users_jobs_are_listed_read_and_ended(named: User) -> None:
    started = named.run(WAITING, "--detach")
    assert started.returncode == 0, started.stderr
    run_id = json.loads(started.stdout)["run_id"]
    listed = json.loads(named.plumbline("job", "list", "--active", "--json").stdout)
    assert [one["run_id"] for one in listed] == [run_id]
    ended = named.plumbline("job", "cancel", run_id, "--json", "--quiet", "--grace", "1")
    assert json.loads(ended.stdout)["state"] == "cancelled", ended.stderr
    assert named.plumbline("job", "logs", run_id).stdout in ("begun\n", "")
    assert named.plumbline("job", "wait", run_id, "--quiet").returncode == 2


def test_a_user_without_a_name_runs_jobs_too(place: Path) -> None:
    """As in containers that are started under any id."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv here")
    user = settled(User(another_user.free_user(), place))
    body = """
import pathlib
try:
    pathlib.Path(KEY).read_text()
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    ended = user.run(body.replace("KEY", repr(str(place / "user/.ssh/id_test"))), "--detach")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run_id = json.loads(ended.stdout)["run_id"]
    assert user.plumbline("job", "wait", run_id, "--quiet").returncode == 0
    assert user.plumbline("job", "logs", run_id).stdout == "PermissionError\n"


def test_an_ordinary_users_engine_keeps_the_whole_contract(named: User) -> None:
    python, contract = str(named.place / "env/bin/python"), "tests/plumbline_mcp/engines/test_contract.py"
    options = ["-x", "-p", "no:cacheprovider", "--basetemp", str(named.place / "user/tests")]
    ended = subprocess.run(
        named.command(python, "-m", "pytest", *options, contract),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert " passed" in ended.stdout, ended.stdout
    assert "skipped" not in ended.stdout
