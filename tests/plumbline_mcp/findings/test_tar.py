"""One spelling: every other tar, and every tar with one changed byte, is refused."""

import contextlib
import io
import random
import re
import tarfile
from pathlib import Path

import pytest

from plumbline_mcp.findings import tar
from plumbline_mcp.findings.tar import EvidenceRefused

LONG = "runs/" + "a" * 60 + "/" + "b" * 60 + "/" + "c" * 60 + ".json"


def packed(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    tar.write(target, list(files.items()))
    return target.getvalue()


def plain(
    name: str = "a.json", content: bytes = b"{}", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> bytes:
    """A tar that the standard library writes."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = len(content) if kind == tarfile.REGTYPE else 0, kind, link
        archive.addfile(info, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    return target.getvalue()


def test_what_is_written_is_read_back_and_other_programs_read_it_too() -> None:
    files = {"a.json": b"{}", "b/empty": b"", LONG: b"x" * 1025}
    raw = packed(files)
    file = io.BytesIO(raw)
    found = tar.members(file)
    assert {one.name: tar.content(file, one, 2000) for one in found} == files
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        members = archive.getmembers()
        read = {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    assert read == files
    assert {(member.mode, member.mtime, member.uid, member.uname) for member in members} == {
        (0o644, 0, 0, "")
    }
    assert packed(files) == raw


def test_every_byte_of_a_header_and_of_padding_counts() -> None:
    """A change of a name or a size that is another valid header is left to the digests of the index."""
    raw = packed({"a.json": b"{}", "b.json": b"[1]"})
    files = {(one.name, one.size, one.offset) for one in tar.members(io.BytesIO(raw))}
    content = set(range(512, 514)) | set(range(1536, 1539))
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 0x01]) + raw[at + 1 :]
        try:
            found = {(one.name, one.size, one.offset) for one in tar.members(io.BytesIO(changed))}
        except EvidenceRefused:
            assert at not in content
        else:
            assert at in content, at
            assert found == files


@pytest.mark.parametrize(
    "raw",
    [
        plain("../a.json"),
        plain("/etc/passwd"),
        plain("a/../../b"),
        plain("./a.json"),
        plain("a//b"),
        plain("a.json", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        plain("a.json", kind=tarfile.LNKTYPE, link="b.json"),
        plain("a.json", kind=tarfile.DIRTYPE),
        plain("a.json", kind=tarfile.CHRTYPE),
        plain("a.json", kind=tarfile.FIFOTYPE),
        plain("a.json", kind=tarfile.XHDTYPE),
        plain("a.json", kind=tarfile.GNUTYPE_LONGNAME),
        plain("a b\x1b.json"),
        plain(".hidden"),
        b"",
        b"\0" * 512,
        b"no tar at all" * 100,
        packed({"a": b"1"})[:-512],
        packed({"a": b"1"}) + b"\0" * 512,
        packed({"a": b"1"}) + b"more",
    ],
)
def test_path_tricks_links_devices_and_foreign_tars_are_refused(raw: bytes) -> None:
    with pytest.raises(EvidenceRefused):
        tar.members(io.BytesIO(raw))


def test_a_huge_size_in_a_header_is_refused_without_reading_it() -> None:
    raw = bytearray(packed({"a": b"1"}))
    raw[124:136] = b"77777777777\0"
    raw[148:156] = b"%06o\0 " % sum(raw[:148] + b" " * 8 + raw[156:512])
    with pytest.raises(EvidenceRefused, match="ends within a"):
        tar.members(io.BytesIO(bytes(raw)))


def test_a_file_above_the_limit_of_what_it_is_read_as_is_refused() -> None:
    file = io.BytesIO(packed({"a": b"x" * 100}))
    with pytest.raises(EvidenceRefused, match="larger than 99 bytes"):
        tar.content(file, tar.members(file)[0], 99)


@pytest.mark.parametrize("name", ["..", "a/..", "/a", "", "a/", "a b", "ü", "x" * 300, "a/" + "x" * 120])
def test_names_that_do_not_fit_are_not_written(name: str) -> None:
    assert not tar.fits(name, 1)
    with pytest.raises(ValueError, match=re.escape(name) + "$"):
        packed({name: b""})


def test_a_link_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        tar.write(io.BytesIO(), [("a", tmp_path / "link")])


@pytest.mark.parametrize("seed", range(20))
def test_noise_never_crashes_the_reader(seed: int) -> None:
    draw = random.Random(seed)
    raw = bytearray(packed({"a.json": b"{}" * 300, "b": b"x"}))
    for _ in range(draw.randrange(1, 30)):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    with contextlib.suppress(EvidenceRefused):
        tar.members(io.BytesIO(bytes(raw)))
