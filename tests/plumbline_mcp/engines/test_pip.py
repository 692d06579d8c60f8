"""What of pip's output is shown while it installs."""

import pytest

from plumbline_mcp.engines.pip import _brief


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Successfully installed accelerate-1.5.0 annotated-doc-0.0.7", "installed 2 packages"),
        ("Installing collected packages: mpmath, typing-extensions, sympy", "installing 3 packages"),
        ("Collecting accelerate==1.5.0", "Collecting accelerate==1.5.0"),
        ("x" * 500, "x" * 160),
    ],
)
def test_a_list_of_packages_is_told_as_their_number(line: str, shown: str) -> None:
    assert _brief(line) == shown
