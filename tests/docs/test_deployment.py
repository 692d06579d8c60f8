"""The deployment page, carried out: users, folders, tokens, a signature, and what the agent may not do."""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from approvals.tiers import Tier, request_tier
from tests.plumbline_mcp.scan.proposed import attempts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"
ROOT = PAGE.parents[1]
SYSTEM_PYTHON = Path("/usr/bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
NEEDED = ("useradd", "userdel", "runuser", "setpriv", "install", "ssh-keygen")
CLIENT = """
import anyio, json, sys
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
url, token = sys.argv[1], open(sys.argv[2]).read().strip()
async def main():
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    async with web, Client(streamable_http_client(url, http_client=web)) as client:
        print(json.dumps((await client.call_tool("scan_status", {})).structured_content))
anyio.run(main)
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def block(beginning: str) -> str:
    (found,) = [text for text in blocks("sh") if text.startswith(f"# {beginning}")]
    return found


def test_the_unit_is_one_that_systemd_takes_and_rates_as_safe(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    (unit,) = blocks("ini")
    file = tmp_path / "plumbline.service"
    # /bin/true stands for the program, which is not installed here; nothing else is changed
    file.write_text(re.sub("(?m)^ExecStart=.*$", "ExecStart=/bin/true", unit))
    verified = subprocess.run([analyze, "verify", str(file)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=25", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout[-500:]


@dataclass
class Deployed:
    place: Path
    names: dict[str, str]
    ticket: str

    @property
    def agent_uid(self) -> int:
        return pwd.getpwnam(self.names["AGENT"]).pw_uid

    def as_agent(self, *command: str) -> "subprocess.CompletedProcess[str]":
        who = str(self.agent_uid)
        become = ["setpriv", f"--reuid={who}", f"--regid={who}", "--init-groups", "env", "-i", "-C", "/"]
        return subprocess.run(
            [*become, f"PATH={os.defpath}", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def shell(self, script: str) -> str:
        return shell(self.names | {"TICKET": self.ticket}, script)


def shell(names: dict[str, str], script: str) -> str:
    given = "\n".join(f"{name}='{value}'" for name, value in names.items())
    done = subprocess.run(
        ["/bin/bash", "-eu", "-c", f"{given}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in NEEDED):
        pytest.skip("only root can create users, with useradd and setpriv")
    if not SYSTEM_PYTHON.exists() or (ROOT / "plumbline_mcp").stat().st_mode & 0o005 != 0o005:
        pytest.skip("no other user may read our interpreter and packages here")
    place = Path(tempfile.mkdtemp(prefix="plumbline-deployed-", dir="/var/tmp"))
    place.chmod(0o755)
    mark = os.getpid()
    names = {
        "SERVER": f"plserver{mark}",
        "REVIEWER": f"plreviewer{mark}",
        "AGENT": f"placoder{mark}",
        "PROGRAM": str(place / "program"),
        "WORKSPACE": str(place / "workspace"),
        "TRUST": str(place / "trust"),
    }
    try:
        _install(Path(names["PROGRAM"]))
        shell(names, block("users and folders"))
        _reviewers_key(names["REVIEWER"])
        ticket = shell(names, block("a reviewer, a policy, a token") + '\necho "TICKET $TICKET"\n')
        yield Deployed(place, names, ticket.split("TICKET ")[-1].strip())
    finally:
        for who in ("SERVER", "REVIEWER", "AGENT"):
            subprocess.run(["userdel", "--force", "--remove", names[who]], capture_output=True, check=False)
        shutil.rmtree(place)


def _install(program: Path) -> None:
    """In place of pip: an environment of root's with our packages, and the launcher that ships."""
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", program], check=True)
    (site,) = program.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n{ROOT}\n")
    shutil.copyfile(ROOT / "plumbline_mcp/launcher/plumbline", program / "bin/plumbline")
    (program / "bin/plumbline").chmod(0o755)


def _reviewers_key(name: str) -> None:
    key = f"/home/{name}/.ssh/plumbline"
    script = f"mkdir -m 0700 /home/{name}/.ssh && ssh-keygen -q -t ed25519 -N '' -f {key}"
    subprocess.run(["runuser", "-u", name, "--", "/bin/sh", "-c", script], check=True, capture_output=True)


@pytest.fixture(scope="module")
def served(deployed: Deployed) -> Iterator[str]:
    """The server, started as its own user after the reviewer signed the agent's token."""
    deployed.shell(AS_SERVER + block("one decision"))
    environment = [
        f"PLUMBLINE_HOME={deployed.names['WORKSPACE']}",
        f"PLUMBLINE_TRUST={deployed.names['TRUST']}",
    ]
    program = f"{deployed.names['PROGRAM']}/bin/plumbline"
    become = ["runuser", "-u", deployed.names["SERVER"], "--", "env", "-C", "/"]
    process = subprocess.Popen(
        [*become, *environment, program, "serve", "--http", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    said = json.loads(line)
    assert said["token"] is None
    yield said["url"]
    os.kill(said["pid"], 15)
    process.wait(20)


AS_SERVER = "".join(re.findall(r"as_server\(\) \{.*?\n\}\n", PAGE.read_text(), re.DOTALL))


def test_the_agents_user_reads_and_writes_nothing_of_server_trust_and_reviewer(deployed: Deployed) -> None:
    workspace, trust = Path(deployed.names["WORKSPACE"]), Path(deployed.names["TRUST"])
    own = Path("/home", deployed.names["AGENT"], "plumbline.token")
    key = Path("/home", deployed.names["REVIEWER"], ".ssh/plumbline")
    for path in (workspace / "plumbline.db", trust / "allowed_signers", trust / "policy.toml", key):
        assert path.exists()
        assert deployed.as_agent("cat", str(path)).returncode != 0, path
        assert deployed.as_agent("sh", "-c", f"echo x >> {path}").returncode != 0, path
    for folder in (workspace, trust, key.parent):
        assert deployed.as_agent("ls", str(folder)).returncode != 0
        assert deployed.as_agent("touch", str(folder / "planted")).returncode != 0
    assert deployed.as_agent("cat", str(own)).stdout.startswith("plumbline_")


def test_the_agents_user_can_write_no_file_of_the_program(deployed: Deployed) -> None:
    look = ("find", deployed.names["PROGRAM"], str(ROOT / "plumbline_mcp"), str(ROOT / "checks"))
    found = deployed.as_agent(*look, "!", "-type", "l", "-writable")
    assert (found.stdout, found.returncode) == ("", 0)
    assert deployed.as_agent("touch", f"{deployed.names['PROGRAM']}/bin/plumbline").returncode != 0


def test_such_an_agents_requests_are_of_tier_t2(deployed: Deployed) -> None:
    database = Path(deployed.names["WORKSPACE"]) / "plumbline.db"
    assert request_tier("real", database, deployed.agent_uid) is Tier.T2
    assert request_tier("real", database, pwd.getpwnam(deployed.names["SERVER"]).pw_uid) is Tier.T1


def test_the_agent_is_served_over_http_with_the_signed_token(deployed: Deployed, served: str) -> None:
    token = f"/home/{deployed.names['AGENT']}/plumbline.token"
    python = f"{deployed.names['PROGRAM']}/bin/python"
    answer = deployed.as_agent(python, "-I", "-c", CLIENT, served, token)
    assert answer.returncode == 0, answer.stderr
    status = json.loads(answer.stdout)
    assert status["trust"].startswith(f"You are {deployed.names['AGENT']} (role agent). ")
    assert status["workspace"] == deployed.names["WORKSPACE"]


def test_a_proposed_check_is_held_for_a_user_who_is_not_root_too(deployed: Deployed) -> None:
    given = deployed.place / "given"
    given.mkdir(mode=0o755)
    (given / "rows.txt").write_text("one\n")
    source = attempts(
        database=f"open({deployed.names['WORKSPACE'] + '/plumbline.db'!r}, 'rb').read(1)",
        outside=f"open({deployed.names['WORKSPACE'] + '/planted'!r}, 'w')",
        network="socket.socket()",
        fork="os.fork()",
        signal="os.kill(os.getppid(), 9)",
    )
    (given / "lines.py").write_text(source)
    deployed.shell(AS_SERVER + f"as_server proposed add {given}/lines.py")
    said = deployed.shell(
        AS_SERVER + f"as_server proposed run lines --input file={given}/rows.txt --quiet --json"
    )
    verdict = json.loads(said)
    assert verdict["outcome"] == "pass", verdict["reason"]
    assert re.match("(landlock|bubblewrap) and a filter of system calls", verdict["confinement"])
    told = dict(verdict["target"])
    assert told.pop("framework") == "mine"
    assert set(told) == {"database", "outside", "network", "fork", "signal"}
    assert "done" not in told.values(), told


def test_the_agents_user_cannot_look_into_the_server_or_end_it(deployed: Deployed, served: str) -> None:
    server = pwd.getpwnam(deployed.names["SERVER"]).pw_uid
    pids = [
        path.name for path in Path("/proc").glob("[0-9]*") if path.exists() and path.stat().st_uid == server
    ]
    assert pids
    for pid in pids:
        assert deployed.as_agent("cat", f"/proc/{pid}/environ").returncode != 0
        assert deployed.as_agent("/bin/sh", "-c", f"kill -9 {pid}").returncode != 0
    time.sleep(0.2)
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
