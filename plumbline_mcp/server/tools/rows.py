"""Rows as they entered the model, decoded by the release's tokenizer. Read in a worker."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from plumbline_mcp.server.located import located, readable
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, View, size, take

_TIME_LIMIT_S = 600.0


class SpanView(View):
    """Tokens ``first`` to before ``end``, all supervised or all not (null: the rows hold no labels)."""

    first: int
    end: int
    supervised: bool | None
    untrusted_text: str | None


class TokenView(View):
    """One token; label -100 is not supervised."""

    token: int
    id: int
    label: int | None
    untrusted_text: str | None


class SequenceView(View):
    """One sequence as it entered the model."""

    sequence: int
    workload_rows: tuple[int, ...]
    epoch: int | None
    rank: int
    batch: int | None
    tokens: int
    supervised: int | None
    documents: int | None = Field(description="documents packed into it, where the record says so")
    spans_total: int
    spans: tuple[SpanView, ...]
    window: tuple[TokenView, ...]


class RowsPage(Page):
    """Chosen sequences. ``total`` counts all of the dump."""

    kind: str
    rows: tuple[SequenceView, ...]


def add_rows(toolset: Toolset) -> None:
    """Add ``rows_read``."""

    async def rows_read(
        ctx: Context,
        rows: Annotated[
            str, Field(description="dump (JSONL, safetensors, saved data set), run folder or run id")
        ],
        model: Annotated[
            str | None,
            Field(description="release folder whose tokenizer decodes the text; a run knows its own"),
        ] = None,
        first: Annotated[int, Field(ge=0, description="first sequence")] = 0,
        count: Annotated[int, Field(ge=1, le=20)] = 1,
        token: Annotated[int | None, Field(ge=0, description="also show each token around this one")] = None,
        window: Annotated[int, Field(ge=0, le=64, description="tokens shown on each side")] = 8,
    ) -> RowsPage:
        """Read rows as they entered the model: text in spans, supervised or not; tokens with id and label.

        Use it at the place a data verdict names (sequence, token).
        """
        from plumbline_mcp import workers

        payload = {
            **readable(toolset, rows),
            "model": str(located(toolset, model)) if model else None,
            "first": first,
            "count": count,
            "token": token,
            "window": window,
        }
        async with reported(ctx) as progress:
            answer = await workers.call(
                "plumbline_mcp.server.reading.rows:read_rows",
                payload,
                progress=progress,
                timeout_s=_TIME_LIMIT_S,
            )
        return _page(answer, first, count)

    toolset.add(rows_read, RowsPage, title="Read rows")


def _page(answer: dict[str, Any], first: int, count: int) -> RowsPage:
    head = RowsPage(total=answer["total"], kind=answer["kind"], rows=())
    budget = RESULT_LIMIT - size(head) - 300
    views = [_clipped(SequenceView.model_validate(row), budget) for row in answer["rows"]]
    shown = take(views, budget)
    end = first + len(shown)
    more = len(shown) < min(count, head.total - first)
    cut = any(len(row.spans) < row.spans_total for row in shown)
    return head.model_copy(
        update={
            "rows": tuple(shown),
            "truncated": more or cut,
            "next": f"rows_read(..., first={end}, count=1)" if end < head.total else "",
        }
    )


def _clipped(row: SequenceView, budget: int) -> SequenceView:
    """A row whose window and spans fit; ``spans_total`` says how many there are, ``token`` shows the rest."""
    window = take(row.window, budget // 2) if row.window else []
    bare = row.model_copy(update={"spans": (), "window": tuple(window)})
    return bare.model_copy(update={"spans": tuple(take(row.spans, budget - size(bare)))})
