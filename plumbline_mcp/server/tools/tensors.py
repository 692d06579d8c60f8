"""Tensors of a checkpoint or a record: names, shapes, dtypes, values, digests. Read in a worker."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from checks.check import Progress
from plumbline_mcp.server import cursors
from plumbline_mcp.server.located import readable
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, View, size, take

_PAGE = 200
_MOST_VALUES = 512
_TIME_LIMIT_S = 600.0


class TensorView(View):
    """A tensor as it is stored."""

    untrusted_name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    untrusted_file: str
    norm: float | str | None = Field(None, description="2-norm in float64; only with `norms`, of floats")


class TensorPage(Page):
    """Tensors by name; of one tensor also its values."""

    bytes: int = Field(description="of all matching tensors together")
    tensors: tuple[TensorView, ...]
    digest: str | None = Field(None, description="SHA-256 over dtype, shape and bytes; only with `tensor`")
    first: int | None = None
    values: tuple[float | int | str, ...] = Field(
        (), description="row-major, decoded exactly; nan and inf as text"
    )


def add_tools(toolset: Toolset) -> None:
    """Add ``tensors_read``."""

    async def tensors_read(
        ctx: Context,
        path: Annotated[
            str,
            Field(description="checkpoint folder, safetensors file (of a run too), or id of an export run"),
        ],
        contains: Annotated[str, Field(description="list only names that contain this")] = "",
        norms: Annotated[bool, Field(description="also the 2-norm of each listed tensor")] = False,
        tensor: Annotated[str | None, Field(description="read this one's values and digest instead")] = None,
        first: Annotated[int, Field(ge=0, description="first element, row-major")] = 0,
        count: Annotated[int, Field(ge=1, le=_MOST_VALUES, description="how many elements")] = 64,
        cursor: str | None = None,
    ) -> TensorPage:
        """List a checkpoint's tensors (name, dtype, shape, file), or read values and the digest of one.

        Headers and offsets are checked; values are decoded as stored, packed formats are not unpacked.
        Files of a run are verified against its seal first.
        """
        place = readable(toolset, path)
        async with reported(ctx) as progress:
            if tensor is None:
                return await _listed(place, contains, norms, cursor, progress)
            from plumbline_mcp import workers

            answer = await workers.call(
                "plumbline_mcp.server.reading.tensors:read_tensor",
                place | {"tensor": tensor, "first": first, "count": count},
                progress=progress,
                timeout_s=_TIME_LIMIT_S,
            )
        return _one(answer)

    toolset.add(tensors_read, TensorPage, title="Read tensors")


async def _listed(
    place: dict[str, Any], contains: str, norms: bool, cursor: str | None, progress: Progress
) -> TensorPage:
    from plumbline_mcp import workers

    arguments = {"path": place["path"], "contains": contains, "norms": norms}
    skip = cursors.offset(cursor, "tensors_read", arguments)
    answer = await workers.call(
        "plumbline_mcp.server.reading.tensors:list_tensors",
        place | arguments | {"skip": skip, "limit": _PAGE},
        progress=progress,
        timeout_s=_TIME_LIMIT_S,
    )
    page = TensorPage(total=answer["total"], bytes=answer["bytes"], tensors=())
    shown = take(
        (TensorView.model_validate(one) for one in answer["tensors"]), RESULT_LIMIT - size(page) - 500
    )
    more = skip + len(shown) < page.total
    return page.model_copy(
        update={
            "tensors": tuple(shown),
            "truncated": more,
            "cursor": cursors.encode("tensors_read", arguments, skip + len(shown)) if more else None,
            "next": "narrow with contains, or read one with tensor=<untrusted_name>",
        }
    )


def _one(answer: dict[str, Any]) -> TensorPage:
    tensor = TensorView.model_validate(answer["tensor"])
    elements = 1
    for length in tensor.shape:
        elements *= length
    end = answer["first"] + len(answer["values"])
    return TensorPage(
        total=1,
        truncated=end < elements,
        next=f"the same call with first={end}" if end < elements else "",
        bytes=tensor.bytes,
        tensors=(tensor,),
        digest=answer["digest"],
        first=answer["first"],
        values=tuple(answer["values"]),
    )
