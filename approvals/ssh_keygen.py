"""The program ``ssh-keygen``: found once at a fixed place, started with an environment of its own.

It is the authority on signatures. ``PATH`` is not asked (whoever starts the server can set it), and neither
an agent's socket nor an askpass program reaches it: with a key in an agent, any process of the same user
could sign without a passphrase.
"""

import fcntl
import functools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from approvals.errors import Refused
from approvals.visible import visible_line

PLACES = ("/usr/bin", "/usr/local/bin", "/bin")
TIMEOUT_S = 60
TERMINAL_TIMEOUT_S = 600
"""How long a person may take to type a passphrase or touch a token."""
MAX_KEY_FILE = 64 * 1024

_FOLDER = "plumbline-sign-"
_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
_LISTED = re.compile(r"^(\d+) (SHA256:[A-Za-z0-9+/]{43}) .*\(([A-Z0-9-]+)\)$")
_MIN_RSA_BITS = 3072


class PublicKey(BaseModel):
    """A public key; immutable."""

    model_config = ConfigDict(frozen=True)

    type: str
    blob: str
    fingerprint: str

    @property
    def text(self) -> str:
        """Type and key, as OpenSSH writes them."""
        return f"{self.type} {self.blob}"

    @property
    def hardware(self) -> bool:
        """Whether the key lives in a token (FIDO)."""
        return is_hardware(self.type)


def is_hardware(key_type: str) -> bool:
    """Whether a key type is one of tokens (FIDO)."""
    return key_type.startswith("sk-")


@functools.cache
def program() -> str:
    """Path of ssh-keygen. Raises `Refused` when it is at none of the fixed places."""
    for folder in PLACES:
        path = Path(folder) / "ssh-keygen"
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise Refused(f"ssh-keygen is in none of {', '.join(PLACES)}", "install the OpenSSH client")


def run(
    arguments: Sequence[str], data: bytes = b"", pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[bytes]:
    """Run it without a terminal; ``data`` is its standard input. Raises `Refused` when it does not answer."""
    try:
        return subprocess.run(
            [program(), *arguments],
            input=data,
            capture_output=True,
            env=_ENVIRONMENT,
            timeout=TIMEOUT_S,
            check=False,
            pass_fds=pass_fds,
            start_new_session=True,  # no controlling terminal: it must not ask anybody
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"ssh-keygen did not answer for {TIMEOUT_S} s", "repeat it") from error


def run_on_terminal(arguments: Sequence[str], elsewhere: str) -> int:
    """Run it on the terminal, where it asks for the passphrase; the exit code.

    Raises `Refused` without a terminal, with ``elsewhere`` as the next step.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("there is no terminal on which the passphrase could be asked", elsewhere) from error
    try:
        return subprocess.run(
            [program(), *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=_ENVIRONMENT,
            timeout=TERMINAL_TIMEOUT_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise Refused(f"nothing was typed within {TERMINAL_TIMEOUT_S} s", "repeat it") from error
    finally:
        os.close(terminal)


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last line of what it said, for a message."""
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return visible_line(lines[-1]) if lines else f"exit code {done.returncode}"


def public_key(path: Path) -> PublicKey:
    """The public key of a ``.pub`` file of one line. Raises `Refused`."""
    text = _small_text(path).strip()
    words = text.split()
    if "\n" in text or len(words) < 2:
        raise Refused(f"{path} holds no public key of one line", "name the .pub file of your key")
    return parsed_key(words[0], words[1], str(path))


@functools.lru_cache(256)
def parsed_key(key_type: str, blob: str, where: str) -> PublicKey:
    """A public key from its two words, judged by ssh-keygen. Raises `Refused`."""
    listed = run(["-l", "-f", "/dev/stdin"], f"{key_type} {blob}\n".encode())
    found = _LISTED.match(listed.stdout.decode(errors="replace").strip())
    if listed.returncode or not found:
        raise Refused(f"{where} holds no public key: {said(listed)}", "name the .pub file of your key")
    if "cert" in key_type:
        raise Refused(f"{where} is a certificate", "enrol the key itself")
    if found[3] == "RSA" and int(found[1]) < _MIN_RSA_BITS:
        raise Refused(
            f"{where} is an RSA key of {found[1]} bits", "make one: plumbline key enrol NAME, without --key"
        )
    return PublicKey(type=key_type, blob=blob, fingerprint=found[2])


def refuse_open_key(private: Path, public: PublicKey) -> None:
    """Raise `Refused` unless the private key needs a passphrase, or a token.

    Also when that cannot be told: other people can read the file, it is damaged, it is another key's.
    """
    if public.hardware:
        return
    refuse_shared_file(private)
    done = run(["-y", "-P", "", "-f", str(private)])
    if done.returncode == 0:
        raise Refused(
            f"the key {private} opens with an empty passphrase: every process of yours could sign with it",
            f"set one: ssh-keygen -p -f {private}",
        )
    if b"incorrect passphrase" not in done.stderr:
        raise Refused(f"cannot tell whether {private} has a passphrase: {said(done)}", "name another key")
    embedded = _embedded(private)
    if embedded and public.fingerprint not in embedded:
        raise Refused(f"{private} is not the private key of {public.fingerprint}", "name its own .pub file")


def _embedded(private: Path) -> str:
    """What ssh-keygen says of the public half inside a private key; "" where it cannot be read (PEM).

    It is given a descriptor: of a path it would read the ``.pub`` file beside it.
    """
    descriptor = os.open(private, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = run(["-l", "-f", f"/proc/self/fd/{descriptor}"], pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    return "" if done.returncode else done.stdout.decode(errors="replace")


def refuse_shared_file(private: Path) -> None:
    """Raise `Refused` when a private key is no file, or one that others can read."""
    try:
        mode = private.stat().st_mode
    except OSError as error:
        raise Refused(f"the key {private} cannot be read: {error.strerror}", "name another key") from error
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise Refused(
            f"the key {private} can be read by others (mode {stat.S_IMODE(mode):o})", f"chmod 600 {private}"
        )


def make_key(path: Path, comment: str, empty_passphrase: bool = False) -> None:
    """Make an Ed25519 key; the passphrase is asked on the terminal. Raises `Refused`."""
    arguments = ["-q", "-t", "ed25519", "-C", comment, "-f", str(path)]
    if empty_passphrase:
        done = run([*arguments, "-N", ""])
        if done.returncode:
            raise Refused(f"no key could be made at {path}: {said(done)}", "check the folder and its space")
    elif run_on_terminal(arguments, "make it at a terminal, or name one with --key"):
        raise Refused(f"no key was made at {path}", "repeat it and give the same passphrase twice")


def memory_file(data: bytes) -> int:
    """A file in memory that a started program reads as ``/proc/self/fd/N``; close it afterwards."""
    descriptor = os.memfd_create("plumbline")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can read, removed after use.

    One whose program was killed before it could do that is removed by the next call: nobody holds its lock.
    """
    _sweep()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # swept before it could be held, as below
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():  # else it was swept before it was held
                yield folder
                return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _sweep() -> None:
    """Remove folders of ours that nobody holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, or not ours to read
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue  # somebody signs
        finally:
            os.close(lock)


def _small_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise Refused(f"the key {path} cannot be read: {error.strerror}", "name the .pub file") from error
    if len(data) > MAX_KEY_FILE:
        raise Refused(f"{path} is larger than a key", "name the .pub file of your key")
    return data.decode(errors="replace")
