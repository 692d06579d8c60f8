"""What an export check is given: folders that cannot be used or read, and run folders."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checks.errors import BadInput
from checks.references.packs import BUILT_IN, load_pack
from checks.verdict import Outcome
from tests.checks.export_pairs import Tensors, edit_json, edited, export_check, write_llama
from tests.checks.verdict_parts import codes, part


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("inputs") / "release")


def _copy(release: Path, target: Path) -> Path:
    shutil.copytree(release, target)
    return target


def test_arguments_that_cannot_be_used_are_usage_errors(release: Path, tmp_path: Path) -> None:
    export = _copy(release, tmp_path / "x")
    (tmp_path / "empty").mkdir()
    for arguments, says in (
        ({"original": tmp_path / "absent"}, "no folder"),
        ({"original": tmp_path / "empty"}, "holds no safetensors weights"),
        ({"export": tmp_path / "absent"}, "no folder"),
        ({"export": release}, "the same folder"),
        ({"trained": tmp_path / "absent"}, "no folder"),
        ({"adapter": tmp_path / "absent"}, "no folder"),
        ({"adapter": tmp_path / "empty"}, "adapter_model"),
        ({"adapter": export, "trained": export}, "both say"),
        ({"framework": "never-heard-of"}, "no connection pack"),
    ):
        given: dict[str, Any] = {"original": release, "export": export, **arguments}
        with pytest.raises(BadInput, match=says) as error:
            export_check(**given)
        assert error.value.next_step, arguments


def test_an_empty_export_wrote_nothing(release: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "pytorch_model.bin").write_bytes(b"\x80")
    verdict = export_check(release, tmp_path / "x")
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, {("files", "nothing-written")})
    assert "never unpickled" in verdict.reason
    assert "safetensors" in verdict.next_step
    assert {p.outcome for p in verdict.parts if p.name != "files"} == {Outcome.NOT_EVALUATED}


def test_an_unreadable_export_fails_and_an_unreadable_original_decides_nothing(
    release: Path, tmp_path: Path
) -> None:
    broken = _copy(release, tmp_path / "broken")
    with (broken / "model.safetensors").open("r+b") as file:
        file.truncate((broken / "model.safetensors").stat().st_size - 10)
    verdict = export_check(release, broken)
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, {("files", "file-unreadable")})
    assert verdict.next_step
    verdict = export_check(broken, release)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "original cannot be read" in verdict.reason
    index = _copy(release, tmp_path / "index")
    (index / "model.safetensors").unlink()
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    verdict = export_check(release, index)
    assert codes(verdict) == {("files", "file-missing")}
    assert part(verdict, "files").problems[0].place.file == "x.safetensors"


@pytest.mark.parametrize("harm", ["truncated", "pickled"])
def test_small_files_are_judged_where_the_weights_cannot_be_read(
    release: Path, tmp_path: Path, harm: str
) -> None:
    export = _copy(release, tmp_path / "x")
    weights = export / "model.safetensors"
    if harm == "truncated":
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size - 10)
    else:
        weights.rename(export / "pytorch_model.bin")
    (export / "generation_config.json").unlink()
    verdict = export_check(release, export)
    outcomes = {entry.name: entry.outcome for entry in verdict.parts}
    assert (outcomes["files"], outcomes["generation_config"]) == (Outcome.FAIL, Outcome.FAIL)
    passed = {name for name, outcome in outcomes.items() if outcome is Outcome.PASS}
    assert passed == {"config", "tokenizer", "chat_template"}
    assert {"names", "values", "reload"} <= {n for n, o in outcomes.items() if o is Outcome.NOT_EVALUATED}
    assert part(verdict, "reload").reason == "no weights can be read (see files)"
    assert any(proof.path == str(export / "config.json") for proof in verdict.evidence)


def test_an_original_whose_configuration_is_no_json_decides_nothing(release: Path, tmp_path: Path) -> None:
    broken = _copy(release, tmp_path / "broken")
    (broken / "config.json").write_text("[1]")
    assert export_check(broken, release).outcome is Outcome.INCONCLUSIVE


def test_two_arguments_that_are_one_folder_are_a_usage_error(release: Path, tmp_path: Path) -> None:
    export = _copy(release, tmp_path / "x")
    (tmp_path / "link").symlink_to(export, target_is_directory=True)
    linked = tmp_path / "linked"
    shutil.copytree(export, linked, copy_function=os.link)
    for trained, says in (
        (export, "the same folder"),
        (tmp_path / "link", "the same folder"),
        (release / ".." / release.name, "the same folder"),
        (linked, "the same file"),
    ):
        with pytest.raises(BadInput, match=says) as error:
            export_check(release, export, trained=trained)
        assert error.value.next_step
    with pytest.raises(BadInput, match="the same folder"):
        export_check(export, tmp_path / "link")


def test_a_run_and_its_own_output_are_one_folder(release: Path, tmp_path: Path) -> None:
    run = _run(tmp_path / "run-7", release)
    with pytest.raises(BadInput, match="the same folder"):
        export_check(release, run, trained=run / "output")


def test_a_weight_file_beside_an_index_is_noted_and_beside_a_single_file_is_a_fault(
    release: Path, tmp_path: Path
) -> None:
    """Serving engines read every safetensors file where no index says which."""
    export = _copy(release, tmp_path / "single")
    stray = "model-00001-of-00002.safetensors"
    shutil.copy(export / "model.safetensors", export / stray)
    verdict = export_check(release, export)
    assert codes(verdict) == {("files", "file-unexpected")}
    assert part(verdict, "files").problems[0].place.file == stray
    assert verdict.next_step
    assert codes(export_check(export, _copy(export, tmp_path / "as_released"))) == set()
    names = load_file(export / "model.safetensors")
    (export / "model.safetensors").rename(export / "consolidated.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, stray)}
    (export / "model.safetensors.index.json").write_text(json.dumps(index))
    verdict = export_check(release, export)
    assert codes(verdict) == set()
    assert "consolidated.safetensors" in part(verdict, "files").notes[0]


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_left_beside_the_weights_is_a_fault(release: Path, tmp_path: Path, name: str) -> None:
    export = _copy(release, tmp_path / "x")
    (export / name).write_text('{"peft_type": "LORA"}')
    verdict = export_check(release, export)
    assert codes(verdict) == {("files", "file-unexpected")}
    assert part(verdict, "files").problems[0].place.file == name
    verdict = export_check(_copy(export, tmp_path / "released"), export)
    assert codes(verdict) == set()
    assert part(verdict, "files").notes == (f"not judged, in the release too: {name}",)


def test_the_pack_that_was_followed_is_in_the_verdict(release: Path, tmp_path: Path) -> None:
    export = _copy(release, tmp_path / "x")
    pack = shutil.copytree(BUILT_IN / "transformers", tmp_path / "my-pack")
    for framework in ("transformers", str(pack)):
        verdict = export_check(release, export, framework=framework)
        assert verdict.target["framework"] == "transformers"
        assert verdict.reference_shares_code
        assert verdict.settings["pack_digest"] == load_pack(framework).digest
        held = {Path(item.path).name for item in verdict.evidence if item.role == "connection pack"}
        assert held == {"names.toml", "pack.toml", "settings.toml"}
    about = pack / "pack.toml"
    text = about.read_text().replace('distributions = ["transformers"]', 'distributions = ["other"]')
    about.write_text(text.replace('module = "transformers"', 'module = "other"'))
    other = export_check(release, export, framework=str(pack))
    assert not other.reference_shares_code
    assert other.settings["pack_digest"] != load_pack("transformers").digest


def _run(
    folder: Path, exported: Path | None, *, code: int = 0, stderr: str = "", procedure: str = "export"
) -> Path:
    """A sealed run folder as the runner leaves it."""
    for name in ("exit", "logs", "output"):
        (folder / name).mkdir(parents=True)
    if exported is not None:
        shutil.copytree(exported, folder / "output", dirs_exist_ok=True)
    job = {"format": 1, "run_id": folder.name, "procedure": procedure, "framework": "transformers"}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "exit" / "rank-00000.json").write_text(json.dumps({"rank": 0, "code": code}))
    (folder / "logs" / "rank-00000.err").write_text(stderr)
    files = {
        str(path.relative_to(folder)): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    return folder


def test_the_export_of_a_run_is_judged(release: Path, tmp_path: Path) -> None:
    verdict = export_check(release, _run(tmp_path / "run-1", release))
    assert (verdict.outcome, verdict.run_id) == (Outcome.PASS, "run-1")
    assert verdict.target["framework"] == "transformers"
    assert verdict.reference_shares_code


def test_an_exporter_that_failed_is_a_failure_with_its_last_line(release: Path, tmp_path: Path) -> None:
    stderr = "Traceback\nValueError: Undefined \x1b[31mOperation\n\n"
    verdict = export_check(release, _run(tmp_path / "run-2", None, code=1, stderr=stderr))
    assert (verdict.outcome, codes(verdict)) == (Outcome.FAIL, {("files", "exporter-failed")})
    assert "ValueError: Undefined \\x1b[31mOperation" in verdict.reason
    assert "log" in verdict.next_step
    assert "\x1b" not in verdict.reason
    long = export_check(release, _run(tmp_path / "run-3", release, code=1, stderr="x" * 100_000))
    assert codes(long) == {("files", "exporter-failed")}
    assert len(long.reason) < 600


def test_a_run_that_wrote_nothing_is_a_failure(release: Path, tmp_path: Path) -> None:
    verdict = export_check(release, _run(tmp_path / "run-4", None))
    assert codes(verdict) == {("files", "nothing-written")}


def test_a_run_that_was_changed_after_sealing_decides_nothing(release: Path, tmp_path: Path) -> None:
    run = _run(tmp_path / "run-5", release)
    edit_json(run / "output" / "config.json", hidden_size=99)
    verdict = export_check(release, run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "changed after sealing" in verdict.reason


def test_a_file_that_the_run_did_not_seal_decides_nothing(release: Path, tmp_path: Path) -> None:
    bare = _copy(release, tmp_path / "bare")
    (bare / "generation_config.json").unlink()
    run = _run(tmp_path / "run-8", bare)
    assert ("generation_config", "file-missing") in codes(export_check(release, run))
    shutil.copy(release / "generation_config.json", run / "output")
    verdict = export_check(release, run)
    assert (verdict.outcome, codes(verdict)) == (Outcome.INCONCLUSIVE, set())
    assert "output/generation_config.json is not in the manifest" in verdict.reason
    (run / "output" / "generation_config.json").unlink()
    (run / "output" / "generation_config.json").symlink_to("config.json")
    assert "not in the manifest" in export_check(release, run).reason


def test_a_link_that_no_reader_uses_hides_nothing(release: Path, tmp_path: Path) -> None:
    run = _run(tmp_path / "run-9", release)
    (run / "output" / "latest").symlink_to(".")
    assert export_check(release, run).outcome is Outcome.PASS


def test_a_run_of_another_procedure_is_a_usage_error(release: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="of the procedure 'rows'"):
        export_check(release, _run(tmp_path / "run-6", release, procedure="rows"))


def test_an_export_whose_type_the_reference_does_not_know_does_not_reload(
    release: Path, tmp_path: Path
) -> None:
    """The class that architectures names would load it; what users call goes by model_type."""
    export = _copy(release, tmp_path / "export")
    edit_json(export / "config.json", model_type="gpt_nope")
    verdict = export_check(release, export)
    assert part(verdict, "config").outcome is Outcome.FAIL
    assert ("reload", "reload-failed") in codes(verdict)
    assert "gpt_nope" in part(verdict, "reload").reason
    both = [_copy(export, tmp_path / name) for name in "ab"]
    assert part(export_check(*both), "reload").outcome is Outcome.NOT_EVALUATED


def test_a_release_that_lacks_weights_itself_decides_no_reload(release: Path, tmp_path: Path) -> None:
    """The reference re-initialises the same weight in both: an export as released, not one that loads."""
    lost = "model.norm.weight"
    sides = [edited(release, tmp_path / name, lambda tensors: tensors.pop(lost)) for name in "ab"]
    verdict = export_check(*sides)
    reload = part(verdict, "reload")
    assert (verdict.outcome, reload.outcome) == (Outcome.NOT_EVALUATED, Outcome.NOT_EVALUATED)
    assert codes(verdict) == {("reload", "release-incomplete")}
    assert lost in reload.reason
    assert reload.problems[0].next_step
    more = edited(release, tmp_path / "more", _add_unused)
    verdict = export_check(more, _copy(more, tmp_path / "same"))
    assert verdict.outcome is Outcome.PASS
    assert "unused.weight" in part(verdict, "reload").notes[0]


def _add_unused(tensors: Tensors) -> None:
    tensors["unused.weight"] = torch.ones(3)
