"""A requirements list: pip's own spelling is read, and what would not decide the environment is refused."""

from pathlib import Path

import pytest

from plumbline_mcp.engines.requirements import read_requirements
from plumbline_mcp.errors import UsageError

A, B = "a" * 64, "b" * 64


def listed(folder: Path, text: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_as_pip_compile_writes_them_are_read(tmp_path: Path) -> None:
    text = f"""# made by pip-compile
accelerate==1.15.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via -r in.txt
Transformers[torch,chat-template]==5.24.0 ; python_version >= "3.9" --hash=sha256:{A}

colorama==0.4.6 ; sys_platform == 'win32' --hash=sha256:{B}
"""
    found = read_requirements(listed(tmp_path, text))
    assert found.hashes["accelerate==1.15.0"] == (f"sha256:{A}", f"sha256:{B}")
    assert found.requirements[1] == 'Transformers[chat-template,torch]==5.24.0; python_version >= "3.9"'
    assert len(found.requirements) == 3


def test_a_list_without_hashes_is_taken_only_when_the_target_says_so(tmp_path: Path) -> None:
    path = listed(tmp_path, f"a==1\nb==2 --hash=sha256:{A}\n")
    with pytest.raises(UsageError, match=r"requirements\.txt, line 1: a==1 has no --hash") as refused:
        read_requirements(path)
    assert "hashes = false" in refused.value.next_step
    found = read_requirements(path, hashed=False)
    assert found.requirements == ("a==1", "b==2")
    assert not found.hashes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lists no requirement"),
        ("# nothing\n", "lists no requirement"),
        ("-r other.txt\n", "line 1: '-r other.txt' is an option"),
        ("--index-url https://example.org\na==1\n", "line 1: '--index-url"),
        ("a==1\n\na>=2\n", "line 3: 'a>=2' names no version"),
        ("a==1.*\n", "names no version"),
        ("./local\n", "is no requirement"),
        ("a==1 --hash=sha256:abc\n", "the hash 'sha256:abc' is none"),
        (f"a==1 --hash=md5:{'c' * 32}\n", "the hash 'md5:"),
    ],
)
def test_what_would_not_decide_the_environment_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_requirements(listed(tmp_path, text), hashed=False)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_requirements(tmp_path / "nothing.txt")
