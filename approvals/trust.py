"""The trust roots: who may sign, which keys are revoked, and the policy. They lie outside every workspace.

``PLUMBLINE_TRUST``, else ``$XDG_CONFIG_HOME/plumbline`` (``~/.config/plumbline``):

    allowed_signers   OpenSSH's format, one key a line
    revoked           keys that no longer count, as ``ssh-keygen -r`` reads them
    policy.toml       see `approvals.policy`
    keys/NAME         a reviewer's private key, or a link to it (none where the key lies elsewhere)
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from approvals import ssh_keygen
from approvals.allowed_signers import Signer, day, parsed_line, refuse_principal, written_line
from approvals.errors import Refused
from approvals.policy import Policy, shipped
from approvals.ssh_keygen import PublicKey
from approvals.trust_folder import TRUST_VARIABLE, default_folder

NAMESPACE = "plumbline-approval@v1"
EXAMPLE_NAMESPACE = "plumbline-example@v1"
EXAMPLE_SIGNER = "example"
WORKSPACE_DATABASE = "plumbline.db"
"""The file by which a workspace is known."""
MAX_BYTES = 2**20


class TrustRoots:
    """One folder of trust roots. Making one reads nothing; each use checks the folder first."""

    def __init__(self, folder: Path | None = None, namespace: str = NAMESPACE) -> None:
        self.folder = (folder or default_folder()).expanduser().absolute()
        self.namespace = namespace
        self.allowed_signers = self.folder / "allowed_signers"
        self.revoked = self.folder / "revoked"
        self.policy_file = self.folder / "policy.toml"

    @classmethod
    def example(cls, folder: Path) -> "TrustRoots":
        """The example's roots, made when missing: a key without passphrase, in a namespace of its own.

        Only a workspace that was created as an example asks for them.
        """
        trust = cls(folder, EXAMPLE_NAMESPACE)
        if not trust.allowed_signers.exists():  # it is written last
            with trust._changing():
                if not trust.allowed_signers.exists():
                    trust._make_example()
        return trust

    @property
    def is_example(self) -> bool:
        """Whether signatures here are the example's."""
        return self.namespace == EXAMPLE_NAMESPACE

    def key_of(self, principal: str) -> Path:
        """Where the private key of a reviewer lies on this machine, if it does."""
        return self.folder / "keys" / principal

    def check(self) -> None:
        """Raise `Refused` when the folder is missing, in a workspace, or could be written by others."""
        if not self.folder.is_dir():
            raise Refused(
                f"there are no trust roots at {self.folder}", "enrol a reviewer: plumbline key enrol NAME"
            )
        if not self.is_example:  # whose key anybody here may use
            self._refuse_workspace()
            self._refuse_writable()

    def policy(self) -> Policy:
        """The policy of today. Raises `Refused` when there is none."""
        self.check()
        return Policy.load(self.policy_file)

    def use_policy(self, name: str) -> Policy:
        """Make a shipped policy the one in force. Raises `Refused` for another name."""
        known = shipped()
        if name not in known:
            raise Refused(f"there is no policy {name!r}", f"choose one of {', '.join(known)}")
        with self._changing():
            self._write(self.policy_file, known[name].read_text(encoding="utf-8"))
        return self.policy()

    # --- keys -------------------------------------------------------------------------------------------

    def enrolled(self) -> tuple[Signer, ...]:
        """Every enrolled key, in the file's order, revoked ones too. Raises `Refused` for a strange line."""
        self.check()
        revoked = {" ".join(line.split()[:2]) for line in _lines(self.revoked)}
        signers = (
            parsed_line(line, f"line {number} of {self.allowed_signers}", self.namespace)
            for number, line in enumerate(_lines(self.allowed_signers), 1)
        )
        return tuple(s.model_copy(update={"revoked": s.key.text in revoked}) for s in signers)

    def reviewers(self) -> list[str]:
        """Names of those whose keys count; none where nobody was enrolled yet. Raises `Refused`."""
        enrolled = self.enrolled() if self.folder.exists() else ()
        return sorted({signer.principal for signer in enrolled if not signer.revoked})

    def signers_of(self, principal: str) -> tuple[Signer, ...]:
        """The keys of a reviewer that are not revoked. Raises `Refused` when there is none."""
        own = [signer for signer in self.enrolled() if signer.principal == principal]
        if not own:
            raise Refused(f"{principal} is not enrolled", f"enrol the key: plumbline key enrol {principal}")
        valid = tuple(signer for signer in own if not signer.revoked)
        if not valid:
            raise Refused(
                f"the key of {principal} is revoked", f"enrol a new one: plumbline key enrol {principal}"
            )
        return valid

    def lists(self, principal: str) -> bool:
        """Whether any key of this name is enrolled, revoked or not. Raises `Refused` for a strange line."""
        return any(signer.principal == principal for signer in self.enrolled())

    def local_signer(self) -> str:
        """The one reviewer whose key lies on this machine. Raises `Refused` when it is not one."""
        names = {s.principal for s in self.enrolled() if not s.revoked and self.key_of(s.principal).exists()}
        if len(names) == 1:
            return names.pop()
        known = ", ".join(sorted(names)) or "no reviewer's key lies here"
        raise Refused(f"it is not clear who signs ({known})", "name the reviewer with --as NAME")

    def enrol(
        self,
        principal: str,
        public_key: Path | None = None,
        elsewhere: bool = False,
        valid_before: str = "",
    ) -> Signer:
        """Let a key sign from now on; without one, make it here and ask for a passphrase. Raises `Refused`.

        The private key lies beside ``public_key`` without ``.pub``; it must not open with an empty
        passphrase. ``elsewhere`` enrols a key whose private file is on another machine. ``valid_before`` is
        a UTC day, ``YYYYMMDD``.
        """
        refuse_principal(principal)
        before = day(valid_before)
        with self._changing():
            path = public_key or self._made_key(principal)
            key = ssh_keygen.public_key(path)
            self._refuse_enrolled(key)
            private = path.with_suffix("") if path.suffix == ".pub" else None
            self._refuse_private(private, key, elsewhere)
            if private and private.exists():
                self._link(principal, private)
            signer = Signer(principal=principal, key=key, valid_before=before, elsewhere=elsewhere)
            self._append(self.allowed_signers, written_line(signer, self.namespace))
            self._append(self.revoked, "")
        return signer

    def revoke(self, name: str) -> tuple[Signer, ...]:
        """Stop a fingerprint, or all keys of a reviewer, from counting. Raises `Refused` when none fits."""
        with self._changing():
            fitting = [
                s for s in self.enrolled() if name in (s.principal, s.key.fingerprint) and not s.revoked
            ]
            if not fitting:
                raise Refused(f"no key of {name!r} counts here", "see them: plumbline key list")
            for signer in fitting:
                self._append(self.revoked, signer.key.text)
        return tuple(signer.model_copy(update={"revoked": True}) for signer in fitting)

    # --- the files --------------------------------------------------------------------------------------

    def _made_key(self, principal: str) -> Path:
        path = self.key_of(principal)
        if path.exists() or path.is_symlink():
            raise Refused(f"there is a key at {path} already", "enrol it: give --key and its .pub file")
        ssh_keygen.make_key(path, f"plumbline {principal}")
        made = path.with_name(f"{principal}.pub")
        try:
            ssh_keygen.refuse_open_key(path, ssh_keygen.public_key(made))
        except Refused as error:
            path.unlink()
            made.unlink()
            again = f"repeat it and give a passphrase: plumbline key enrol {principal}"
            raise Refused(error.message, again) from error
        return made

    def _refuse_private(self, private: Path | None, key: PublicKey, elsewhere: bool) -> None:
        if private and private.exists():
            ssh_keygen.refuse_open_key(private, key)
        elif not elsewhere and not key.hardware:
            raise Refused(
                f"the private key of {key.fingerprint} is not beside its public key, so its passphrase"
                " cannot be tested",
                "enrol it where it lies, or say that it lies on another machine with --elsewhere",
            )

    def _refuse_enrolled(self, key: PublicKey) -> None:
        for signer in self.enrolled() if self.allowed_signers.exists() else ():
            if signer.key.fingerprint == key.fingerprint:
                what = "was revoked" if signer.revoked else "is enrolled already"
                raise Refused(f"this key {what} (as {signer.principal})", "enrol another key")

    def _link(self, principal: str, private: Path) -> None:
        own = self.key_of(principal)
        if private.absolute() != own:
            own.unlink(missing_ok=True)
            own.symlink_to(private.absolute())

    def _make_example(self) -> None:
        """Called with the folder locked; a half-made one of a killed process is made again."""
        path = self.key_of(EXAMPLE_SIGNER)
        for old in (path, path.with_name(f"{EXAMPLE_SIGNER}.pub")):
            old.unlink(missing_ok=True)
        ssh_keygen.make_key(path, "plumbline example", empty_passphrase=True)
        key = ssh_keygen.public_key(path.with_name(f"{EXAMPLE_SIGNER}.pub"))
        self._write(self.policy_file, shipped()["solo"].read_text(encoding="utf-8"))
        self._write(self.revoked, "")
        self._write(
            self.allowed_signers,
            written_line(Signer(principal=EXAMPLE_SIGNER, key=key), self.namespace) + "\n",
        )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the folder, made when missing, for one change at a time. Raises `Refused`."""
        if not self.is_example:
            self._refuse_workspace()
        try:
            for folder in (self.folder, self.folder / "keys"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refused(
                f"the trust roots {self.folder} cannot be written: {error.strerror}",
                f"name a folder of yours with {TRUST_VARIABLE}",
            ) from error
        try:
            self.check()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _append(self, path: Path, line: str) -> None:
        """Add a line; comments of whoever edited the file by hand stay."""
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        before += "" if not before or before.endswith("\n") else "\n"
        self._write(path, before + (f"{line}\n" if line else ""))

    def _write(self, path: Path, text: str) -> None:
        """Replace a file at once: a process that is killed leaves the old one or the new one."""
        new = path.with_name(f".{path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _refuse_workspace(self) -> None:
        real = Path(os.path.realpath(self.folder))
        for parent in (real, *real.parents):
            if (parent / WORKSPACE_DATABASE).exists():
                raise Refused(
                    f"the trust roots {self.folder} lie in the workspace {parent}",
                    f"name a folder outside it with {TRUST_VARIABLE}",
                )

    def _refuse_writable(self) -> None:
        """As sshd's StrictModes: no file, nor the folder, nor a folder above may be written by others."""
        real = Path(os.path.realpath(self.folder))
        inside = [path for path in (self.allowed_signers, self.revoked, self.policy_file) if path.exists()]
        for path in (*inside, real, *real.parents):
            found = path.stat()
            shared = found.st_mode & 0o022 and not (path.is_dir() and found.st_mode & stat.S_ISVTX)
            if shared or found.st_uid not in (0, os.geteuid()):
                raise Refused(
                    f"others can write {path} (mode {stat.S_IMODE(found.st_mode):o}, owner {found.st_uid}),"
                    " so whoever signs could be changed there",
                    f"chmod go-w {path}, or name a folder of yours with {TRUST_VARIABLE}",
                )


def _lines(path: Path) -> list[str]:
    """The lines of a trust file that say something. Raises `Refused` when it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", "check its owner and mode") from error
    if len(data) > MAX_BYTES:
        raise Refused(f"{path} is larger than {MAX_BYTES} bytes", "shorten it")
    lines = (line.strip() for line in data.decode(errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
