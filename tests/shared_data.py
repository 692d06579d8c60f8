"""Where the real templates, tokenizers, workloads and records lie, and the skip where they are absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason=f"real data not found at {SHARED}/data; these tests need it"
)
