"""Tokenizers as the reference loads them: settings and classes that change what the files say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from checks.references.checkpoints.folder import Checkpoint, read_documents
from checks.references.checkpoints.tokenizer_loading import compare_loaded
from checks.verdict import Outcome
from tests.checks.export_pairs import edit_json, export_check, write_llama
from tests.checks.verdict_parts import codes, part
from tests.shared_data import SHARED, needs_shared


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("loading") / "release")


def _side(folder: Path) -> Checkpoint:
    return Checkpoint(folder, {}, read_documents(folder))


def _with_settings(side: Checkpoint, **fields: Any) -> Checkpoint:
    settings = {**(side.json("tokenizer_config.json") or {}), **fields}
    kept = {name: value for name, value in settings.items() if value is not None}
    return replace(side, documents={**side.documents, "tokenizer_config.json": json.dumps(kept).encode()})


def _found(original: Checkpoint, export: Checkpoint) -> list[tuple[str, str | None]]:
    problems = compare_loaded(original, export).problems
    assert all(problem.next_step for problem in problems)
    return [(problem.code, problem.place.field) for problem in problems]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"split_special_tokens": True}, None),
        ({"eos_token": "<s>"}, "eos_token"),
        ({"extra_special_tokens": ["the"]}, "all_special_ids"),
        ({"padding_side": "left"}, "padding_side"),
        ({"model_max_length": 7}, "model_max_length"),
        ({"clean_up_tokenization_spaces": True}, "clean_up_tokenization_spaces"),
    ],
)
def test_a_setting_that_changes_what_is_loaded_is_found(
    release: Path, settings: dict[str, Any], field: str | None
) -> None:
    original = _side(release)
    assert ("tokenizer-differs", field) in _found(original, _with_settings(original, **settings))


def test_special_tokens_split_as_text_fail_the_check_though_the_vocabulary_is_equal(
    release: Path, tmp_path: Path
) -> None:
    export = tmp_path / "x"
    _copy(release, export)
    edit_json(export / "tokenizer_config.json", split_special_tokens=True)
    ids = [AutoTokenizer.from_pretrained(folder).encode("a</s>b") for folder in (release, export)]
    assert ids[0] != ids[1]
    verdict = export_check(release, export)
    assert codes(verdict) == {("tokenizer", "tokenizer-differs")}


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def test_what_the_reference_writes_when_it_saves_a_tokenizer_again_is_equal(
    release: Path, tmp_path: Path
) -> None:
    original = _with_settings(_side(release), tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    (tmp_path / "a").mkdir()
    for name, raw in original.documents.items():
        (tmp_path / "a" / name).write_bytes(raw)
    AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    found = compare_loaded(original, _side(tmp_path / "b"))
    problems, notes = found.problems, found.notes
    assert problems == []
    assert "both load to the same" in notes[0]


def _word_splitter(side: Checkpoint) -> Checkpoint:
    """A release whose own splitter the class Qwen2Tokenizer replaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    splitters = [
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["1234567 3.14159 the year 0123456789"] * 5, trainer)
    return replace(side, documents={**side.documents, "tokenizer.json": tokenizer.to_str().encode()})


def test_a_class_that_builds_its_own_splitter_is_found_by_its_ids(release: Path) -> None:
    original = _with_settings(_word_splitter(_side(release)), tokenizer_class="PreTrainedTokenizerFast")
    problems = compare_loaded(original, _with_settings(original, tokenizer_class="Qwen2Tokenizer")).problems
    assert [problem.code for problem in problems][:1] == ["tokenizer-differs"]
    assert "loaded as Qwen2Tokenizer" in problems[0].message


def test_a_special_token_that_the_class_brings_is_no_difference_when_it_is_written_down(
    release: Path, tmp_path: Path
) -> None:
    """Qwen2Tokenizer brings ``unk_token``; transformers 4 writes it out. What no class brings counts."""
    original = tmp_path / "original"
    _copy(release, original)
    edit_json(original / "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    brought = AutoTokenizer.from_pretrained(original).unk_token
    assert brought
    assert "unk_token" not in json.loads((original / "tokenizer_config.json").read_text())
    export = tmp_path / "export"
    _copy(original, export)
    edit_json(export / "tokenizer_config.json", unk_token=brought)
    verdict = export_check(original, export)
    assert not {code for code in codes(verdict) if code[0] == "tokenizer"}
    assert "unk_token" in " ".join(part(verdict, "tokenizer").notes)
    edit_json(export / "tokenizer_config.json", unk_token="</s>")
    assert ("tokenizer", "tokenizer-differs") in codes(export_check(original, export))
    edit_json(export / "tokenizer_config.json", unk_token=brought, cls_token="</s>")
    (problem,) = part(export_check(original, export), "tokenizer").problems
    assert problem.place.field == "cls_token"


def _unloadable(side: Checkpoint) -> Checkpoint:
    return _with_settings(side, auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}, tokenizer_class="Evil")


def test_code_of_a_tokenizer_is_never_run(release: Path) -> None:
    """Equal files are equal without it; unequal ones are not decided; an export that lost it is at fault."""
    original = _side(release)
    evil = replace(
        _unloadable(original),
        documents={**_unloadable(original).documents, "evil.py": b"raise SystemExit('it was run')"},
    )
    problems, notes = compare_loaded(evil, evil).problems, compare_loaded(evil, evil).notes
    assert (problems, len(notes)) == ([], 1)
    assert "equal byte for byte" in notes[0]
    problems = compare_loaded(evil, original).problems
    assert [(p.code, p.outcome) for p in problems] == [("tokenizer-not-loaded", Outcome.NOT_EVALUATED)]
    assert _found(original, evil) == [("tokenizer-differs", None)]


@needs_shared
def test_the_released_deepseek_files_with_another_class_are_found() -> None:
    original = _side(SHARED / "data" / "tokenizers" / "deepseek-v4")
    assert _found(original, original) == []
    assert _found(original, _with_settings(original, tokenizer_class="Qwen2Tokenizer"))[0] == (
        "tokenizer-differs",
        None,
    )


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_drop("tokenizer_config.json"), {("tokenizer", "file-missing")}),
        (_drop("tokenizer.json"), {("tokenizer", "file-missing")}),
        (lambda folder: (folder / "vocab.json").write_text('{"b": 1}'), {("tokenizer", "tokenizer-differs")}),
        (lambda folder: (folder / "vocab.json").write_text(' {"a":1}'), set()),
        (lambda folder: (folder / "merges.txt").write_text("a b\nc d\n"), set()),
        (
            lambda folder: (folder / "merges.txt").write_text("c d\na b\n"),
            {("tokenizer", "tokenizer-differs")},
        ),
        (lambda folder: (folder / "tokenizer.model").write_bytes(b"b"), {("tokenizer", "tokenizer-differs")}),
    ],
)
def test_every_tokenizer_file_is_compared(
    release: Path, tmp_path: Path, change: Callable[[Path], None], found: set[tuple[str, str]]
) -> None:
    original, export = tmp_path / "a", tmp_path / "b"
    _copy(release, original)
    (original / "vocab.json").write_text('{"a": 1}')
    (original / "merges.txt").write_text("#version: 0.2\na b\nc d\n")
    (original / "tokenizer.model").write_bytes(b"a")
    (original / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    _copy(original, export)
    change(export)
    assert codes(export_check(original, export)) - {("chat_template", "template-missing")} == found


def test_an_older_vocabulary_file_that_was_left_out_is_noted_and_not_counted(
    release: Path, tmp_path: Path
) -> None:
    original = tmp_path / "a"
    _copy(release, original)
    (original / "tokenizer.model").write_bytes(b"a")
    tokenizer = part(export_check(original, release), "tokenizer")
    assert (tokenizer.outcome, str(tokenizer.coverage)) == (Outcome.PASS, "2 of 3 files")
    assert "tokenizer.model is not in the export" in tokenizer.notes[0]


def test_added_tokens_in_another_order_are_equal(release: Path, tmp_path: Path) -> None:
    export = tmp_path / "x"
    _copy(release, export)
    raw = json.loads((export / "tokenizer.json").read_text())
    edit_json(export / "tokenizer.json", added_tokens=raw["added_tokens"][::-1])
    verdict = export_check(release, export)
    assert verdict.outcome is Outcome.PASS
    assert "another order" in part(verdict, "tokenizer").notes[0]
    moved = [{**token, "id": 1 - token["id"]} for token in raw["added_tokens"]]
    edit_json(export / "tokenizer.json", added_tokens=moved)
    assert ("tokenizer", "tokenizer-differs") in codes(export_check(release, export))
