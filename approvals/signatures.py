"""Signing and verifying with SSH signatures (``ssh-keygen -Y``), as PROTOCOL.sshsig of OpenSSH has them."""

import os
from datetime import UTC, datetime
from pathlib import Path

from approvals import ssh_keygen
from approvals.allowed_signers import Signer
from approvals.errors import Refused
from approvals.trust import TrustRoots

MAX_SIGNATURE = 16 * 1024

_ELSEWHERE = "sign at a terminal, or write the statement with --statement-to and sign it elsewhere"
_BEGIN = "-----BEGIN SSH SIGNATURE-----\n"


def sign(data: bytes, key: Path, namespace: str, tty: bool) -> str:
    """The armored signature of ``data`` by a private key. Raises `Refused`.

    With ``tty`` the passphrase (or the touch) is asked on the terminal; without, only the example's key,
    which has none, can sign.
    """
    if key.suffix == ".pub":
        raise Refused(f"{key} is a public key", "name the private key: no agent is asked")
    ssh_keygen.refuse_shared_file(key)
    with ssh_keygen.private_folder() as folder:
        file = folder / "statement"
        file.write_bytes(data)
        arguments = ["-Y", "sign", "-f", str(key), "-n", namespace, str(file)]
        if tty:
            code = ssh_keygen.run_on_terminal(arguments, _ELSEWHERE)
            failed = "wrong passphrase, or no touch" if code else ""
        else:
            done = ssh_keygen.run(arguments)
            failed = ssh_keygen.said(done) if done.returncode else ""
        if failed:
            raise Refused(f"nothing was signed with {key}: {failed}", "repeat it with the right key")
        return file.with_suffix(".sig").read_text(encoding="ascii")


def verify(data: bytes, signature: str, principal: str, trust: TrustRoots, namespace: str, at: int) -> Signer:
    """Who signed, when the signature counts at the time ``at`` (seconds since 1970). Raises `Refused`.

    It has to be by a key that is enrolled for this principal alone, in this namespace, valid then, and not
    revoked.
    """
    trust.check()
    trust.signers_of(principal)
    _refuse_unarmored(signature, principal)
    descriptor = ssh_keygen.memory_file(signature.encode("ascii"))
    try:
        return _verified(data, descriptor, principal, trust, namespace, at)
    finally:
        os.close(descriptor)


def verify_unlisted(data: bytes, signature: str, signer: str, namespace: str) -> None:
    """Raise `Refused` unless the signature is of this text, by the key that it carries itself.

    Whose key that is stays open: nothing here says who signed.
    """
    _refuse_unarmored(signature, signer)
    descriptor = ssh_keygen.memory_file(signature.encode("ascii"))
    try:
        arguments = ["-Y", "check-novalidate", "-n", namespace, "-s", f"/proc/self/fd/{descriptor}"]
        done = ssh_keygen.run(arguments, data, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    if done.returncode:
        raise Refused(
            f"the signature of {signer} does not hold in the namespace {namespace}: {ssh_keygen.said(done)}",
            "have it signed again",
        )


def _refuse_unarmored(signature: str, signer: str) -> None:
    if len(signature) > MAX_SIGNATURE or not signature.startswith(_BEGIN) or not signature.isascii():
        raise Refused(f"what {signer} is said to have signed carries no SSH signature", "sign it again")


def _verified(
    data: bytes, descriptor: int, principal: str, trust: TrustRoots, namespace: str, at: int
) -> Signer:
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y%m%d%H%M%SZ")
    signature = f"/proc/self/fd/{descriptor}"
    common = ["-f", str(trust.allowed_signers), "-s", signature, f"-Overify-time={moment}"]
    found = ssh_keygen.run(["-Y", "find-principals", *common], pass_fds=[descriptor])
    named = found.stdout.decode(errors="replace").splitlines()
    if found.returncode or not named:
        raise Refused(
            f"the signature of {principal} is by a key that is not enrolled, or not valid now",
            "sign with an enrolled key: plumbline key list",
        )
    if named != [principal]:
        raise Refused(
            f"the signature is by a key of {', '.join(named)}, not of {principal} alone",
            "sign as the person whose key it is; enrol each key once",
        )
    revoked = ["-r", str(trust.revoked)] if trust.revoked.exists() else []
    done = ssh_keygen.run(
        ["-Y", "verify", *common, "-I", principal, "-n", namespace, *revoked], data, pass_fds=[descriptor]
    )
    if done.returncode:
        raise Refused(
            f"the signature of {principal} does not hold in the namespace {namespace} (altered text, another"
            f" namespace, or a revoked key): {ssh_keygen.said(done)}",
            "have it signed again, with a key that counts: plumbline key list",
        )
    fingerprint = done.stdout.decode(errors="replace").split()[-1]
    return next(s for s in trust.signers_of(principal) if s.key.fingerprint == fingerprint)
