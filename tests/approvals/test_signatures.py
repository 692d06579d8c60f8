"""Signatures by the real ssh-keygen, and everything by which it could be talked past a passphrase."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from approvals import ssh_keygen
from approvals.errors import Refused
from approvals.signatures import sign, verify
from approvals.trust import NAMESPACE, TrustRoots
from tests.approvals import reviewers
from tests.approvals.reviewers import PASSPHRASE, START, Reviewer

DATA = b'{"a":1}'


def test_a_signature_of_an_enrolled_key_counts(solo: TrustRoots, ada: Reviewer) -> None:
    signature = reviewers.signed(DATA, ada, NAMESPACE)
    signer = verify(DATA, signature, "ada", solo, NAMESPACE, START)
    assert (signer.principal, signer.key.type) == ("ada", "ssh-ed25519")
    assert signer.key.fingerprint in reviewers.ssh_keygen("-l", "-f", str(ada.public))


@pytest.mark.parametrize(
    ("data", "principal", "namespace", "said"),
    [
        (b'{"a":2}', "ada", NAMESPACE, "does not hold in the namespace"),
        (DATA, "grace", NAMESPACE, "by a key of ada, not of grace alone"),
        (DATA, "nobody", NAMESPACE, "nobody is not enrolled"),
        (DATA, "ada", "file", "does not hold in the namespace"),
        (DATA, "a*", NAMESPACE, "is not enrolled"),
        (DATA, "-Oprint-pubkey", NAMESPACE, "is not enrolled"),
    ],
)
def test_anything_else_does_not(
    solo: TrustRoots, ada: Reviewer, data: bytes, principal: str, namespace: str, said: str
) -> None:
    signature = reviewers.signed(DATA, ada, NAMESPACE)
    with pytest.raises(Refused, match=said):
        verify(data, signature, principal, solo, namespace, START)


@pytest.mark.parametrize("signature", ["", "x", "-----BEGIN SSH SIGNATURE-----\n" + "A" * 20_000, "é"])
def test_what_is_no_signature_never_reaches_the_program(solo: TrustRoots, signature: str) -> None:
    with pytest.raises(Refused, match="carries no SSH signature"):
        verify(DATA, signature, "ada", solo, NAMESPACE, START)


def test_a_locked_key_signs_nothing_without_a_terminal(ada: Reviewer) -> None:
    with pytest.raises(Refused, match="nothing was signed"):
        sign(DATA, ada.locked, NAMESPACE, tty=False)


def test_where_there_is_no_terminal_the_refusal_says_what_to_do(ada: Reviewer) -> None:
    program = (
        "from pathlib import Path\nfrom approvals.signatures import sign\n"
        f"sign(b'x', Path({str(ada.locked)!r}), 'n', tty=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert "there is no terminal on which the passphrase could be asked" in done.stderr


def test_a_public_key_is_not_signed_with(ada: Reviewer) -> None:
    with pytest.raises(Refused, match="is a public key"):
        sign(DATA, ada.public, NAMESPACE, tty=False)


def test_a_key_that_others_can_read_is_not_signed_with(ada: Reviewer, tmp_path: Path) -> None:
    shared = tmp_path / "key"
    shutil.copyfile(ada.opened, shared)
    shared.chmod(0o644)
    with pytest.raises(Refused, match=r"can be read by others \(mode 644\)"):
        sign(DATA, shared, NAMESPACE, tty=False)


@pytest.fixture
def agent(ada: Reviewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A running ssh-agent that holds ada's key, and this process's environment points at it."""
    if not shutil.which("ssh-agent"):
        pytest.skip("no ssh-agent here")
    socket = tmp_path / "agent"
    started = subprocess.run(
        ["ssh-agent", "-s", "-a", str(socket)], capture_output=True, text=True, check=True
    )
    number = int(started.stdout.split("SSH_AGENT_PID=")[1].split(";")[0])
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    try:
        subprocess.run(["ssh-add", "-q", str(ada.opened)], check=True, capture_output=True)
        yield
    finally:
        os.kill(number, signal.SIGTERM)


@pytest.mark.usefixtures("agent")
def test_an_agent_that_holds_the_key_is_not_asked(ada: Reviewer, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(DATA)
    plain = ["/usr/bin/ssh-keygen", "-Y", "sign", "-f", str(ada.locked), "-n", NAMESPACE, str(file)]
    done = subprocess.run(plain, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, "the agent signs for whoever asks it: what is to be prevented"
    with pytest.raises(Refused, match="nothing was signed"):
        sign(DATA, ada.locked, NAMESPACE, tty=False)


def test_an_askpass_program_is_not_asked(
    ada: Reviewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "askpass"
    asked.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-asked\necho {PASSPHRASE}\n")
    asked.chmod(0o755)
    for name, value in {"SSH_ASKPASS": asked, "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}.items():
        monkeypatch.setenv(name, str(value))
    file = tmp_path / "data"
    file.write_bytes(DATA)
    plain = ["/usr/bin/ssh-keygen", "-Y", "sign", "-f", str(ada.locked), "-n", NAMESPACE, str(file)]
    done = subprocess.run(
        plain, capture_output=True, check=False, stdin=subprocess.DEVNULL, start_new_session=True
    )
    assert done.returncode == 0, "the askpass program answers: what is to be prevented"
    (tmp_path / "was-asked").unlink()
    with pytest.raises(Refused, match="nothing was signed"):
        sign(DATA, ada.locked, NAMESPACE, tty=False)
    assert not (tmp_path / "was-asked").exists()


def test_a_program_of_that_name_on_the_path_is_not_taken(
    solo: TrustRoots, ada: Reviewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "ssh-keygen"
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\necho ada\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ssh_keygen.program.cache_clear()
    with pytest.raises(Refused):
        verify(b"other", reviewers.signed(DATA, ada, NAMESPACE), "ada", solo, NAMESPACE, START)
    assert ssh_keygen.program() in {f"{folder}/ssh-keygen" for folder in ssh_keygen.PLACES}
    assert not (tmp_path / "was-run").exists()


def test_where_it_is_at_no_fixed_place_the_refusal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_keygen, "PLACES", ("/nowhere",))
    ssh_keygen.program.cache_clear()
    try:
        with pytest.raises(Refused, match="ssh-keygen is in none of /nowhere"):
            ssh_keygen.program()
    finally:
        ssh_keygen.program.cache_clear()


LEFT = """
import os, signal, sys
from approvals.ssh_keygen import private_folder
with private_folder() as folder:
    (folder / "statement").write_text("signed")
    if sys.argv[1:]:
        os.kill(os.getpid(), signal.SIGKILL)
    print(sorted(path.name for path in folder.parent.glob("plumbline-sign-*")))
"""


def test_what_a_killed_signer_left_goes_with_the_next_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", LEFT]
    killed = subprocess.run([*command, "killed"], env=environment, check=False)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("plumbline-sign-")
    (tmp_path / "plumbline-sign-link").symlink_to(tmp_path)
    (tmp_path / "plumbline-sign-held").touch()  # no folder: not ours
    living = tmp_path / "plumbline-sign-living"
    living.mkdir()
    lock = os.open(living, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert left.name not in told
    assert "plumbline-sign-living" in told
    os.close(lock)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {"plumbline-sign-held", "plumbline-sign-link"}
