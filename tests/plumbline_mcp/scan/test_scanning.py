"""The steps of a scan: which there are, who gets which setting, how a recipe that cannot start ends it."""

import sys
from pathlib import Path

import anyio
import pytest

from checks.references.packs import load_pack
from checks.verdict import Outcome
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.scanning import Scan, Scanned, Subject, check_recipe
from plumbline_mcp.scan.steps import StepProgress, step_names, steps_for
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.small_pack import write_pack

DRY_RUN = """
def dry_run(job, recorder, progress):
    import sys
    print("a line that says little", file=sys.stderr)
    print("refused: the framework takes no \\x1b[31mred\\x1b[0m recipe", file=sys.stderr)
    sys.exit(3)
"""


def pack_with_dry_run(folder: Path, body: str) -> Path:
    pack = write_pack(folder / "pack")
    with (pack / "pack.toml").open("a") as file:
        file.write('[procedures.dry_run]\nbinding = "dry_run.py"\n')
    (pack / "dry_run.py").write_text(body)
    return pack


def scanned(folder: Path, body: str) -> tuple[Scanned, list[str]]:
    pack, model = pack_with_dry_run(folder, body), folder / "model"
    model.mkdir()
    files = {"model": model, "workload": model}
    subject = Subject(framework=str(pack), python=Path(sys.executable), files=files)
    steps = steps_for(load_pack(str(pack)), ("dry_run", "export"))
    told: list[str] = []
    progress = StepProgress(3, lambda done, total, message: told.append(message))
    workspace = Workspace.open(folder / "home")
    return anyio.run(Scan(workspace, subject, steps, progress).run), told


def test_a_failing_dry_run_ends_the_scan_with_its_sentence(tmp_path: Path) -> None:
    result, told = scanned(tmp_path, DRY_RUN)
    assert result.outcome is Outcome.NOT_EVALUATED
    assert not result.verdicts
    assert result.not_reached == ("export",)
    assert result.dry_run is not None
    assert not result.dry_run.started
    assert result.dry_run.sentence == (
        r"the dry run ended: refused: the framework takes no \x1b[31mred\x1b[0m recipe"
    )
    assert not any("export" in message for message in told)


def test_a_pack_has_the_steps_of_its_procedures(tmp_path: Path) -> None:
    pack = load_pack(str(write_pack(tmp_path / "pack")))
    assert [step.name for step in steps_for(pack)] == ["image", "data", "export"]
    with pytest.raises(UsageError, match="has no step 'load'"):
        steps_for(pack, ("load",))
    assert {"image", "dry_run", "data", "build", "load", "optimizer_step", "export"} == set(step_names())


@pytest.mark.parametrize("framework", ["transformers", "trl"])
def test_built_in_packs_have_every_step(framework: str) -> None:
    assert [step.name for step in steps_for(load_pack(framework))] == step_names()


def test_a_setting_that_no_job_knows_is_refused(tmp_path: Path) -> None:
    pack = load_pack(str(write_pack(tmp_path / "pack")))
    subject = Subject(framework=str(pack.folder), python=Path(sys.executable))
    steps = steps_for(pack)
    check_recipe(pack, subject.model_copy(update={"recipe": {"size": 3}}), steps)
    for changed in ({"recipe": {"sizes": 3}}, {"recipe": {"size": 0}}, {"settings": {"load": {}}}):
        with pytest.raises(UsageError):
            check_recipe(pack, subject.model_copy(update=changed), steps)
