"""Jobs of runs that lie deep get a short name for their temporary files."""

from pathlib import Path

from plumbline_mcp.engines.temporary_folder import link, own_folder, temporary_folder, unlink


def test_a_short_path_is_its_own_name(tmp_path: Path) -> None:
    run = Path("/r/runs/rows-0001")
    assert temporary_folder(run) == own_folder(run) == run / "scratch" / "tmp"


def test_a_long_path_has_a_link_that_a_socket_fits_below(tmp_path: Path) -> None:
    run = tmp_path / ("deep" * 20) / "rows-0001"
    own_folder(run).mkdir(parents=True)
    name = temporary_folder(run)
    assert len(f"{name}/pymp-12345678/listener-12345678") <= 107
    assert name != temporary_folder(run.with_name("rows-0002"))
    link(run, name)
    try:
        (name / "file").write_text("x")
        assert (own_folder(run) / "file").is_file()
        link(run, name)  # made again after a stopped start
    finally:
        unlink(run)
    assert not name.is_symlink()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    run = tmp_path / ("deep" * 20) / "rows-0001"
    name = temporary_folder(run)
    name.symlink_to(tmp_path)
    try:
        unlink(run)
        assert name.is_symlink()
    finally:
        name.unlink()
