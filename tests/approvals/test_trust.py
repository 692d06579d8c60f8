"""Who may sign: enrolment, revocation, and where the trust roots may lie."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from approvals import ssh_keygen
from approvals.errors import Refused
from approvals.signatures import verify
from approvals.statement import Action
from approvals.trust import NAMESPACE, TrustRoots
from approvals.trust_folder import default_folder
from tests.approvals import reviewers
from tests.approvals.reviewers import PASSPHRASE, START, Reviewer, make_reviewer, signed, trusting


@pytest.fixture
def trust(tmp_path: Path) -> TrustRoots:
    return TrustRoots(tmp_path / "trust")


def test_an_enrolled_key_stands_in_openssh_own_format(trust: TrustRoots, ada: Reviewer) -> None:
    signer = trust.enrol("ada", ada.public, valid_before="20280101")
    words = ada.public.read_text().split()
    line = f'ada namespaces="{NAMESPACE}",valid-before="20280101Z" {words[0]} {words[1]}\n'
    assert trust.allowed_signers.read_text() == line
    assert trust.enrolled() == (signer,)
    assert oct(trust.folder.stat().st_mode)[-3:] == "700"
    assert trust.key_of("ada").resolve() == ada.locked


def test_a_key_that_opens_with_an_empty_passphrase_is_refused(
    trust: TrustRoots, ada: Reviewer, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copyfile(ada.opened, bare)
    bare.chmod(0o600)
    shutil.copyfile(ada.public, f"{bare}.pub")
    with pytest.raises(Refused, match="opens with an empty passphrase") as refused:
        trust.enrol("ada", tmp_path / "bare.pub")
    assert f"ssh-keygen -p -f {bare}" in refused.value.next_step
    assert trust.enrolled() == ()


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_keys_of_other_kinds_and_in_pem_are_tested_too(trust: TrustRoots, tmp_path: Path, kind: str) -> None:
    for name, phrase in (("locked", PASSPHRASE), ("bare", "")):
        reviewers.ssh_keygen("-q", "-t", kind, "-m", "PEM", "-N", phrase, "-f", str(tmp_path / name))
    assert trust.enrol("ada", tmp_path / "locked.pub").key.type.startswith(
        kind[:3] if kind != "rsa" else "ssh"
    )
    with pytest.raises(Refused, match="opens with an empty passphrase"):
        trust.enrol("grace", tmp_path / "bare.pub")


def test_what_cannot_be_tested_is_refused_unless_it_lies_elsewhere(
    trust: TrustRoots, ada: Reviewer, tmp_path: Path
) -> None:
    public = tmp_path / "far.pub"
    shutil.copyfile(ada.public, public)
    with pytest.raises(Refused, match="its passphrase cannot be tested"):
        trust.enrol("ada", public)
    assert trust.enrol("ada", public, elsewhere=True).elsewhere
    assert trust.enrolled()[0].elsewhere


def test_a_private_key_of_another_pair_or_open_to_others_or_damaged_is_refused(
    trust: TrustRoots, ada: Reviewer, grace: Reviewer, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copyfile(ada.public, f"{mixed}.pub")
    shutil.copyfile(grace.locked, mixed)
    mixed.chmod(0o600)
    with pytest.raises(Refused, match="is not the private key of SHA256:"):
        trust.enrol("ada", tmp_path / "mixed.pub")
    mixed.chmod(0o640)
    with pytest.raises(Refused, match="can be read by others"):
        trust.enrol("ada", tmp_path / "mixed.pub")
    mixed.chmod(0o600)
    mixed.write_text("no key")
    with pytest.raises(Refused, match="cannot tell whether"):
        trust.enrol("ada", tmp_path / "mixed.pub")


def test_a_hardware_key_needs_no_passphrase(trust: TrustRoots, tmp_path: Path) -> None:
    """A public key of that type, made by hand after PROTOCOL.u2f: no token is here to make one."""
    import base64

    def string(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    kind = b"sk-ssh-ed25519@openssh.com"
    blob = base64.b64encode(string(kind) + string(bytes(range(32))) + string(b"ssh:")).decode()
    public = tmp_path / "token.pub"
    public.write_text(f"{kind.decode()} {blob} ada's token\n")
    signer = trust.enrol("ada", public)
    assert signer.key.hardware
    assert trust.enrolled() == (signer,)


@pytest.mark.parametrize("name", ["", "*", "a,b", "!ada", "-x", "a b", "../x", "x" * 65, "ä"])
def test_a_name_that_openssh_could_read_as_a_pattern_is_refused(
    trust: TrustRoots, ada: Reviewer, name: str
) -> None:
    with pytest.raises(Refused, match="cannot name a reviewer"):
        trust.enrol(name, ada.public)


def test_a_key_is_enrolled_once(trust: TrustRoots, ada: Reviewer, grace: Reviewer) -> None:
    trust.enrol("ada", ada.public)
    with pytest.raises(Refused, match=r"is enrolled already \(as ada\)"):
        trust.enrol("lovelace", ada.public)
    trust.enrol("ada", grace.public)  # a second key of one person
    assert [signer.principal for signer in trust.enrolled()] == ["ada", "ada"]


@pytest.mark.parametrize("text", ["", "no key here", "ssh-ed25519 AAAA", "a\nb"])
def test_a_file_that_is_no_public_key_is_refused(trust: TrustRoots, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.pub").write_text(text)
    with pytest.raises(Refused, match="holds no public key"):
        trust.enrol("ada", tmp_path / "x.pub")


@pytest.mark.parametrize("by", ["name", "fingerprint"])
def test_a_revoked_key_counts_no_more(trust: TrustRoots, ada: Reviewer, by: str) -> None:
    signer = trust.enrol("ada", ada.public)
    signature = signed(b"x", ada, NAMESPACE)
    verify(b"x", signature, "ada", trust, NAMESPACE, START)
    trust.revoke("ada" if by == "name" else signer.key.fingerprint)
    with pytest.raises(Refused, match="the key of ada is revoked"):
        verify(b"x", signature, "ada", trust, NAMESPACE, START)
    with pytest.raises(Refused, match="no key of 'ada' counts here"):
        trust.revoke("ada")
    with pytest.raises(Refused, match="this key was revoked"):
        trust.enrol("ada", ada.public)


def test_a_revocation_list_that_openssh_wrote_holds_too(
    trust: TrustRoots, ada: Reviewer, grace: Reviewer
) -> None:
    """A binary KRL, which only ssh-keygen reads; and one that is damaged lets nothing through."""
    trust.enrol("ada", ada.public)
    trust.enrol("grace", grace.public)
    trust.revoked.unlink()
    reviewers.ssh_keygen("-q", "-k", "-f", str(trust.revoked), str(ada.public))
    with pytest.raises(Refused, match="revoked"):
        verify(b"x", signed(b"x", ada, NAMESPACE), "ada", trust, NAMESPACE, START)
    verify(b"x", signed(b"x", grace, NAMESPACE), "grace", trust, NAMESPACE, START)
    trust.revoked.write_text("garbage\n")
    with pytest.raises(Refused, match="does not hold"):
        verify(b"x", signed(b"x", grace, NAMESPACE), "grace", trust, NAMESPACE, START)


@pytest.mark.parametrize(
    "line",
    [
        "ada {key}",
        '* namespaces="plumbline-approval@v1" {key}',
        'ada,grace namespaces="plumbline-approval@v1" {key}',
        'ada namespaces="git" {key}',
        'ada namespaces="plumbline-approval@v1,git" {key}',
        'ada cert-authority,namespaces="plumbline-approval@v1" {key}',
        "something else",
    ],
)
def test_a_line_by_hand_of_another_kind_is_refused_with_its_number(
    trust: TrustRoots, ada: Reviewer, line: str
) -> None:
    trust.enrol("ada", ada.public)
    words = " ".join(ada.public.read_text().split()[:2])
    trust.allowed_signers.write_text("# by hand\n" + line.format(key=words) + "\n")
    with pytest.raises(Refused, match=r"line 1 of|cannot name a reviewer"):
        trust.enrolled()


def test_comments_by_hand_stay(trust: TrustRoots, ada: Reviewer, grace: Reviewer) -> None:
    trust.enrol("ada", ada.public)
    trust.allowed_signers.write_text("# our reviewers\n" + trust.allowed_signers.read_text().rstrip("\n"))
    trust.enrol("grace", grace.public)
    assert trust.allowed_signers.read_text().startswith("# our reviewers\nada ")
    assert [signer.principal for signer in trust.enrolled()] == ["ada", "grace"]


def test_a_folder_in_a_workspace_is_refused(tmp_path: Path, ada: Reviewer) -> None:
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "home" / "plumbline.db").touch()
    inside = TrustRoots(tmp_path / "home" / "runs" / "trust")
    with pytest.raises(Refused, match="lie in the workspace"):
        inside.enrol("ada", ada.public)
    assert not inside.folder.exists()


@pytest.mark.parametrize("what", ["", "allowed_signers", "policy.toml", "revoked"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_refused(tmp_path: Path, ada: Reviewer, what: str, mode: int) -> None:
    trust = trusting(tmp_path / "trust", "solo", ada)
    path = trust.folder / what
    path.chmod(path.stat().st_mode | mode)
    for call in (trust.policy, trust.enrolled, lambda: trust.signers_of("ada")):
        with pytest.raises(Refused, match="others can write"):
            call()


def test_a_folder_above_that_others_can_write_is_refused(tmp_path: Path, ada: Reviewer) -> None:
    (tmp_path / "open").mkdir()
    trust = trusting(tmp_path / "open" / "trust", "solo", ada)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Refused, match="others can write"):
        trust.policy()
    (tmp_path / "open").chmod(0o1777)  # as /tmp: nobody can rename what is another's
    trust.policy()


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away needs root")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, ada: Reviewer) -> None:
    trust = trusting(tmp_path / "trust", "solo", ada)
    os.chown(trust.allowed_signers, 12345, 12345)
    with pytest.raises(Refused, match="owner 12345"):
        trust.enrolled()


def test_where_nobody_is_enrolled_the_refusal_says_what_to_do(trust: TrustRoots) -> None:
    with pytest.raises(Refused, match="there are no trust roots") as refused:
        trust.enrolled()
    assert refused.value.next_step == "enrol a reviewer: plumbline key enrol NAME"
    trust.use_policy("solo")
    with pytest.raises(Refused, match="ada is not enrolled"):
        trust.signers_of("ada")


def test_the_folder_is_the_variable_else_the_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_TRUST", str(tmp_path / "a"))
    assert default_folder() == tmp_path / "a"
    monkeypatch.delenv("PLUMBLINE_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "b"))
    assert default_folder() == tmp_path / "b" / "plumbline"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert default_folder() == Path.home() / ".config" / "plumbline"


def test_the_one_whose_key_lies_here_signs_unless_it_is_unclear(
    trust: TrustRoots, ada: Reviewer, grace: Reviewer
) -> None:
    trust.enrol("ada", ada.public)
    assert trust.local_signer() == "ada"
    trust.enrol("grace", grace.public)
    with pytest.raises(Refused, match=r"not clear who signs \(ada, grace\)"):
        trust.local_signer()
    trust.revoke("ada")
    assert trust.local_signer() == "grace"


def test_a_new_key_with_an_empty_passphrase_is_removed_again(
    trust: TrustRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the person had pressed Enter twice."""
    make = ssh_keygen.make_key
    monkeypatch.setattr(
        "approvals.trust.ssh_keygen.make_key",
        lambda path, comment: make(path, comment, empty_passphrase=True),
    )
    with pytest.raises(Refused, match="opens with an empty passphrase") as refused:
        trust.enrol("ada")
    assert list((trust.folder / "keys").iterdir()) == []
    assert refused.value.next_step == "repeat it and give a passphrase: plumbline key enrol ada"


def test_the_example_is_made_once_and_again_when_it_was_half_made(tmp_path: Path) -> None:
    trust = TrustRoots.example(tmp_path / "example")
    before = trust.allowed_signers.read_bytes()
    assert TrustRoots.example(tmp_path / "example").allowed_signers.read_bytes() == before
    trust.allowed_signers.unlink()
    (signer,) = TrustRoots.example(tmp_path / "example").enrolled()
    assert signer.principal == "example"
    assert trust.policy().rule_for(reviewers.request(action=Action.PLAN)).requester_may_sign


def test_the_example_lies_wherever_its_workspace_does(tmp_path: Path) -> None:
    (tmp_path / "plumbline.db").touch()
    tmp_path.chmod(0o775)  # as a umask of 002 leaves folders
    assert TrustRoots.example(tmp_path / "example").policy().name == "solo"


def test_a_short_rsa_key_is_refused(trust: TrustRoots, tmp_path: Path) -> None:
    reviewers.ssh_keygen("-q", "-t", "rsa", "-b", "2048", "-N", PASSPHRASE, "-f", str(tmp_path / "short"))
    with pytest.raises(Refused, match="an RSA key of 2048 bits"):
        trust.enrol("ada", tmp_path / "short.pub")


def test_two_enrol_at_once_and_both_stand_there(tmp_path: Path) -> None:
    people = [make_reviewer(f"person{number}", tmp_path) for number in range(4)]
    program = (
        "import sys\nfrom pathlib import Path\nfrom approvals.trust import TrustRoots\n"
        f"TrustRoots(Path({str(tmp_path / 'trust')!r})).enrol(sys.argv[1], Path(sys.argv[2]))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, one.name, str(one.public)]) for one in people]
    assert [each.wait(60) for each in started] == [0] * 4
    assert len(TrustRoots(tmp_path / "trust").enrolled()) == 4
