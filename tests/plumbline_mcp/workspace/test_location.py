import os
import stat
from pathlib import Path

import pytest

from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.workspace import Workspace, default_home
from plumbline_mcp.workspace.location import file_system, refuse_network

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/local rw shared:6 - xfs /dev/vdb rw
32 22 0:42 / /mnt/with\\040space rw - cifs //host/share rw
33 22 0:43 / /mnt/ssh rw - fuse.sshfs me@host: rw
34 22 0:44 / /mnt/box rw - fuse.fuse-overlayfs none rw
35 22 0:45 / /mnt/fast rw - lustre 10.0.0.1@o2ib:/fs rw
36 22 0:46 / /mnt/host rw - 9p share rw
37 22 0:47 / /over rw - ext4 /dev/vdc rw
38 37 0:48 / /over rw - nfs server:/over rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/work", "ext4"),
        ("/home/me/.plumbline", "nfs4"),
        ("/home/me/local/.plumbline", "xfs"),
        ("/homes/other", "ext4"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/over/x", "nfs"),
    ],
)
def test_the_innermost_and_latest_mount_decides(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("mount", ["nfs4", "cifs", "fuse.sshfs", "fuse.s3fs", "lustre", "9p", "smb3", "ceph"])
def test_a_network_file_system_is_refused_with_the_next_step(tmp_path: Path, mount: str) -> None:
    mounts = f"30 22 0:40 / {tmp_path} rw - {mount} server:/x rw\n"
    with pytest.raises(WorkspaceError, match=f"network file system \\({mount}\\)") as raised:
        refuse_network(tmp_path / "not" / "yet", mounts)
    assert "PLUMBLINE_HOME" in raised.value.next_step


@pytest.mark.parametrize("mount", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "zfs"])
def test_a_local_file_system_is_accepted(tmp_path: Path, mount: str) -> None:
    refuse_network(tmp_path / "x", f"30 22 0:40 / {tmp_path} rw - {mount} dev rw\n")


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "share")
    with pytest.raises(WorkspaceError):
        refuse_network(tmp_path / "home" / "x", f"30 22 0:40 / {tmp_path}/share rw - nfs s:/x rw\n")


def test_the_home_is_named_by_the_variable_else_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLUMBLINE_HOME", raising=False)
    (tmp_path / ".plumbline").mkdir()
    inside = tmp_path / "project" / "src"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert default_home() == inside / ".plumbline"  # never one found further up
    monkeypatch.setenv("PLUMBLINE_HOME", str(tmp_path / "named"))
    assert default_home() == tmp_path / "named"


def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Workspace.open(tmp_path / "home").new_id("data")
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "home", *(tmp_path / "home").iterdir()]
        if path.name != ".gitignore"
    }
    assert modes.pop("home") == modes.pop("runs") == 0o700
    assert set(modes.values()) == {0o600}
    assert "plumbline.db" in modes


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(WorkspaceError, match="cannot make the workspace"):
        Workspace.open(tmp_path / "home")


def test_opening_without_making_says_that_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="there is no workspace"):
        Workspace.open(tmp_path / "home", create=False)
    assert not (tmp_path / "home").exists()
