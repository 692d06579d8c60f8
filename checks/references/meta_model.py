"""The reference implementation of a release's model, built on the meta device: it costs no memory."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class MetaModel:
    """``model`` and its ``config``, or why the reference builds none."""

    model: Any = None
    config: Any = None
    why_not: str = ""


def build_on_meta(folder: Path, config: Mapping[str, Any], dtype: str) -> MetaModel:
    """Build what the configuration in ``folder`` asks for with the pinned transformers.

    ``config``: its ``config.json`` as read; ``dtype``: torch's name, empty for the library's own choice. Code
    that a release brings along is never run.
    """
    if "auto_map" in config:
        return MetaModel(why_not="the configuration asks for code of its own (auto_map), which is never run")
    import transformers  # its import sets the level of its logger

    logger = logging.getLogger(transformers.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return _built(str(folder), config, dtype)
    except Exception as error:  # noqa: BLE001 - whatever stops the reference from building it is the reason
        return MetaModel(why_not=f"the reference cannot build it: {type(error).__name__}: {str(error)[:200]}")
    finally:
        logger.setLevel(level)


def _built(folder: str, config: Mapping[str, Any], dtype: str) -> MetaModel:
    import torch
    import transformers

    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    found = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        return MetaModel(why_not=f"transformers {transformers.__version__} does not know {str(name)[:80]!r}")
    build: Any = found._from_config  # type: ignore[attr-defined]  # noqa: SLF001 - the version is pinned
    settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = build(settings, dtype=dtype or None)
    return MetaModel(model, settings)
