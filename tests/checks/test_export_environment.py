"""Our decoders against what the real transformers dequantizes and saves, in its own environment."""

import shutil
import subprocess
from pathlib import Path

import pytest

from checks.references.packs import BUILT_IN, load_pack
from checks.verdict import Outcome
from plumbline_mcp.engines.environments import build
from tests.checks.export_pairs import export_check, places
from tests.checks.verdict_parts import codes, part

_DECLARED = """
[[declared_export]]
release_format = "{kind}"
exported_as = "bfloat16"
description = "for this test: transformers dequantizes it on a CPU"
citation = {{ document = "none", version = "5.24.0" }}
"""


def _pack_that_declares(folder: Path, *kinds: str) -> Path:
    shutil.copytree(BUILT_IN / "transformers", folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "settings.toml").open("a") as file:
        file.write("".join(_DECLARED.format(kind=kind) for kind in kinds))
    return folder


@pytest.mark.environment
@pytest.mark.parametrize(("model", "kinds"), [("v3", ("fp8",)), ("v4", ("fp8", "fp4"))])
def test_decoded_values_are_those_that_transformers_saves(
    tmp_path: Path, model: str, kinds: tuple[str, ...]
) -> None:
    python = build(load_pack("transformers").about.environment.requirements).python
    release, export = tmp_path / "release", tmp_path / "export"
    script = Path(__file__).parent / "deepseek_release.py"
    subprocess.run([python, "-I", script, model, release, export], check=True, capture_output=True)
    verdict = export_check(release, export, framework=str(_pack_that_declares(tmp_path / "pack", *kinds)))
    values = part(verdict, "values")
    assert (values.outcome, part(verdict, "names").outcome) == (Outcome.PASS, Outcome.PASS)
    assert values.coverage is not None
    assert values.coverage.judged == values.coverage.total > 20
    assert codes(verdict) <= {("dtypes", "dtype-differs")}
    assert not any(
        ".experts." in str(name) or "_proj" in str(name) for name in places(verdict, "dtype-differs")
    )
    plain = export_check(release, export)
    assert {("names", "tensor-missing"), ("dtypes", "dtype-differs")} <= codes(plain)
