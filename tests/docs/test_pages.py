"""Generated pages are as their generators write them now."""

import pytest

from tests.docs import ROOT, builders
from tests.docs import templates as templates_page
from tests.real_templates import SETTINGS
from tests.shared_data import needs_shared


@needs_shared
@pytest.mark.parametrize("name", list(builders()))
def test_a_generated_page_is_fresh(name: str) -> None:
    for path, text in builders()[name]().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"run python -m tests.docs ({path})"


@needs_shared
def test_the_table_of_templates_agrees_with_the_first_trial_or_says_why_not() -> None:
    page = (ROOT / templates_page.PAGE).read_text(encoding="utf-8")
    assert "DIFFERS" not in page
    assert set(templates_page.EARLIER) <= {setting.name for setting in SETTINGS}
    for name in templates_page.EARLIER:
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert line.rstrip(" |").split(" | ")[-1], name
