"""A connection pack whose bindings are given as text; it needs no framework."""

from pathlib import Path

from plumbline_mcp.engines.launching import Launch

PACK = """
format = 1
name = "small"
title = "A framework of two functions"
[framework]
distributions = ["small"]
module = "small"
[procedures.rows]
binding = "rows.py"
[procedures.export]
binding = "export.py"
"""
SETTINGS = """
[[setting]]
name = "size"
procedures = ["export"]
status = "supported"
type = "int"
default = 2
minimum = 1
description = "how many"
citation = { document = "the manual", version = "1" }
[[setting]]
name = "order"
procedures = ["export"]
status = "supported"
type = "str"
choices = ["up", "down"]
description = "which way"
citation = { document = "the manual", version = "1" }
[[setting]]
name = "ranks"
procedures = ["export"]
status = "supported"
type = "int"
minimum = 1
description = "how many processes"
citation = { document = "the manual", version = "1" }
[[setting]]
name = "fast"
procedures = ["export"]
status = "refused"
type = "bool"
description = "not supported"
citation = { document = "the manual, section 2", version = "1" }
"""
ROWS = """
def rows(job, writer, progress):
    writer.add(1, 0, [5, 6, 7], [-100, 6, 7], [0], attention_mask=[1, 1, 1])
    writer.add(1, 1, [8, 9], [-100, -100], [1], attention_mask=[1, 0])
    writer.add(2, 0, [8, 9], [-100, 9], [1], attention_mask=[1, 1])
    return ["nothing stood in"]
"""
EXPORT = "def export(job, output, progress):\n"
QUIET = "    return []\n"


def write_pack(folder: Path, export: str = "", rows: str = ROWS) -> Path:
    """Write the pack; ``export`` is the body of its export function."""
    folder.mkdir(parents=True, exist_ok=True)
    body = "".join(f"    {line}\n" for line in export.strip().splitlines())
    (folder / "pack.toml").write_text(PACK)
    (folder / "settings.toml").write_text(SETTINGS)
    (folder / "rows.py").write_text(rows)
    (folder / "export.py").write_text(EXPORT + body + QUIET)
    return folder


def launch(folder: Path, python: str, export: str = "", **options: object) -> Launch:
    """A launch of the export procedure of a small pack with this body."""
    pack = write_pack(folder / "pack", export)
    model = folder / "model"
    model.mkdir(exist_ok=True)
    fields: dict[str, object] = {
        "framework": str(pack),
        "procedure": "export",
        "interpreter": python,
        "inputs": {"model": model},
    }
    return Launch.model_validate(fields | options)
