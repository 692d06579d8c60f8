"""Connection packs are read strictly: a pack cannot hold what it may not say."""

from pathlib import Path

import pytest

from checks.errors import BadInput
from checks.references.packs import built_in, load_pack
from tests.plumbline_mcp.engines.small_pack import PACK, write_pack


def test_every_built_in_pack_is_valid_and_has_its_bindings() -> None:
    assert "transformers" in built_in()
    for name in built_in():
        pack = load_pack(name)
        assert pack.name == name
        for procedure in pack.about.procedures:
            assert pack.procedure_settings(procedure) or procedure == "export"


def test_transformers_declares_its_export_of_mxfp4_with_a_citation() -> None:
    (declared,) = load_pack("transformers").declared_exports()
    assert (declared.release_format, declared.exported_as) == ("mxfp4", "bfloat16")
    assert declared.citation.version == "5.24.0"


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("tolerance = 0.1\n", "tolerance"),
        ("[skip]\nlayers = ['a']\n", "skip"),
        ("[[\n", "no valid TOML"),
        ("[procedures.serve]\nbinding = '../../evil.py'\n", "binding"),
        ("[procedures.serve]\nbinding = 'serve.py'\n", "not in the pack"),
        ("[launch]\nkind = 'mpirun'\n", "kind"),
        ("[shares]\ntransformers = ['../trl/rows.py']\n", "shares"),
        ("[shares]\ntransformers = ['nothing.py']\n", "nothing.py of pack transformers, which is not there"),
        ("[shares]\ntransformers = ['rows.py']\n", "rows.py of pack transformers, which it has itself"),
    ],
)
def test_a_pack_that_says_more_than_how_to_connect_is_refused(
    tmp_path: Path, added: str, message: str
) -> None:
    write_pack(tmp_path / "pack")
    top = added if not added.startswith("[") else ""
    text = top + PACK + (added if added.startswith("[") else "")
    (tmp_path / "pack/pack.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        load_pack(str(tmp_path / "pack"))


def test_the_digest_changes_with_any_file_and_with_no_byte_code(tmp_path: Path) -> None:
    folder = write_pack(tmp_path / "pack")
    before = load_pack(str(folder)).digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/rows.pyc").write_bytes(b"")
    assert load_pack(str(folder)).digest == before
    (folder / "rows.py").write_text("pass\n")
    assert load_pack(str(folder)).digest != before


def test_a_link_in_a_pack_is_refused(tmp_path: Path) -> None:
    folder = write_pack(tmp_path / "pack")
    (folder / "more.py").symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match="is a link"):
        load_pack(str(folder))


def test_an_unknown_pack_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no connection pack 'megatron'") as raised:
        load_pack("megatron")
    assert "transformers" in raised.value.next_step


def test_a_pack_is_given_the_files_that_it_shares_and_its_digest_knows_them() -> None:
    trl, transformers = load_pack("trl"), load_pack("transformers")
    shared = {name for name, path in trl.sources().items() if path.parent == transformers.folder}
    assert shared == set(trl.about.shares["transformers"])
    assert {"rows.py", "supervised.py"} <= set(trl.sources()) - shared
    assert trl.digest != transformers.digest


def test_what_is_not_decayed_is_declared_by_regular_expressions(tmp_path: Path) -> None:
    (declared,) = load_pack("transformers").decays()
    assert declared.excluded_modules == ("LayerNorm",)
    folder = write_pack(tmp_path / "pack")
    citation = "citation = { document = 'd', version = '1' }\n"
    (folder / "settings.toml").write_text("[[decay]]\nexcluded = ['(']\n" + citation)
    with pytest.raises(BadInput, match="no regular expression"):
        load_pack(str(folder))


def test_both_packs_name_the_recipe_alike() -> None:
    recipes = [
        {name: setting.type for name, setting in load_pack(pack).procedure_settings("train_step").items()}
        for pack in ("transformers", "trl")
    ]
    common = recipes[0].keys() & recipes[1].keys()
    assert {"ranks", "layout", "accumulation", "optimizer", "schedule", "record_steps"} <= common
    assert {name: recipes[0][name] for name in common} == {name: recipes[1][name] for name in common}
