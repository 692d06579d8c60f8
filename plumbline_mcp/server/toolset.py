"""Makes tools of functions: truthful annotations, strict arguments, foreseen failures as tool errors."""

import functools
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools.base import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, ResourceLink, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from approvals.errors import Refused
from approvals.visible import visible_line
from checks.errors import CheckError
from plumbline_mcp.arguments import next_call, refusal
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.server.roles import READERS, Role, require_role
from plumbline_mcp.server.running import RunningChecks
from plumbline_mcp.server.schemas import answer_schema, input_schema, outline

if TYPE_CHECKING:
    from plumbline_mcp.workspace import Workspace

ERROR_LIMIT = 800

READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
JUDGES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
"""A check changes none of its inputs; each call stores one more verdict."""


class Linked:
    """An answer with links to raw records beside it."""

    def __init__(self, view: BaseModel, links: list[ResourceLink]) -> None:
        self.view = view
        self.links = links


class Toolset:
    """Collects the tools of one server; holds the workspace, which the first tool that needs it opens.

    ``pythons`` are the interpreters that the user named for it.
    """

    def __init__(self, home: Path | None, pythons: Iterable[Path] = ()) -> None:
        self._home = home
        self.pythons = tuple(pythons)
        self.tools: list[Tool] = []
        self.roles: dict[str, frozenset[Role]] = {}
        """Tool name to the roles that see it and may call it."""
        self.running = RunningChecks()
        self.shown: set[str] = set()
        """Verdicts whose problems an agent of this process has seen: the status goes on from there."""
        self._workspace: Workspace | None = None

    @property
    def runs(self) -> Path:
        """Where the workspace keeps its runs, also while it is not open."""
        from plumbline_mcp.workspace.location import default_home

        return (self._home or default_home()).expanduser().absolute() / "runs"

    @property
    def workspace(self) -> "Workspace":
        """The open workspace. Raises `WorkspaceError`."""
        if self._workspace is None:
            from plumbline_mcp.workspace import Workspace  # sqlite-utils takes a fifth of a second to import

            self._workspace = Workspace.open(self._home)
        return self._workspace

    def add(
        self,
        function: Callable[..., Any],
        answer: type[BaseModel],
        *,
        title: str,
        annotations: ToolAnnotations = READS,
        name: str | None = None,
        description: str | None = None,
        parameters: list[inspect.Parameter] | None = None,
        outlined: tuple[str, ...] = (),
        roles: Iterable[Role | str] | None = None,
    ) -> None:
        """Make a tool of a function that returns ``answer`` (or `Linked`); its docstring is the description.

        ``parameters`` stands for the function's own where those are generated. ``outlined``: the fields of
        the answer that are told here, where another tool tells all. ``roles`` may list and call it: by
        default the agent, and where nothing but reading is done the read-only role too.
        """
        name = name or function.__name__
        allowed = frozenset(map(Role, roles if roles is not None else _default_roles(annotations)))
        self.roles[name] = allowed
        parameters = parameters or list(inspect.signature(function, eval_str=True).parameters.values())
        arguments = _arguments(name, parameters)
        metadata = FuncMetadata(
            arg_model=arguments,
            output_model=answer,
            output_schema=outline(_answer_schema(answer), outlined),
        )
        tool = _Told(
            fn=_wrapped(function, name, allowed),
            name=name,
            title=title,
            description=description or inspect.getdoc(function) or "",
            parameters=input_schema(arguments),
            fn_metadata=metadata,
            is_async=inspect.iscoroutinefunction(function),
            context_kwarg=next((one.name for one in parameters if one.annotation is Context), None),
            annotations=annotations,
        )
        self.tools.append(tool)


class _Told(Tool):
    """A tool that says why it refuses arguments, and the call to make instead."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Run the tool; raises `ToolError`."""
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            reason, model = error.__cause__, self.fn_metadata.arg_model
            if not isinstance(reason, ValidationError) or reason.title != model.__name__:
                raise
            said = refusal(reason, self.parameters, self.name)
            call = next_call(reason, self.parameters, self.name, arguments)
            raise ToolError(f"Error executing tool {self.name}: {said}. Next: {call}") from reason


class _Strict(ArgModelBase):
    """Arguments of a tool: one that it does not have is refused, so that a misspelled one is not ignored."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def _arguments(name: str, parameters: list[inspect.Parameter]) -> type[ArgModelBase]:
    """The model of a tool's arguments; `Tool.from_function` would let unknown ones pass."""
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is inspect.Parameter.empty else one.default)
        for one in parameters
        if one.annotation is not Context
    }
    return create_model(f"{name}Arguments", __base__=_Strict, **fields)


_answer_schema = cache(answer_schema)


def _default_roles(annotations: ToolAnnotations) -> tuple[Role, ...]:
    return READERS if annotations.read_only_hint else (Role.AGENT,)


def _wrapped(function: Callable[..., Any], name: str, roles: frozenset[Role]) -> Callable[..., Any]:
    """The function for its roles alone, its failures foreseen, its answer as on the wire; sync stays sync.

    The list of tools and the server's own gate know the roles too; this is the one that no client and no
    other way to the tool gets around.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **arguments: Any) -> CallToolResult:
            try:
                require_role(name, roles)
                return _result(await function(*args, **arguments))
            except (CheckError, PlumblineError, Refused) as error:
                raise foreseen(error) from error
    else:

        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> CallToolResult:
            try:
                require_role(name, roles)
                return _result(function(*args, **arguments))
            except (CheckError, PlumblineError, Refused) as error:
                raise foreseen(error) from error

    return call


def foreseen(error: CheckError | PlumblineError | Refused) -> ToolError:
    """The tool error of a foreseen failure: what happened, then the next step."""
    text = visible_line(error.message, ERROR_LIMIT)
    return ToolError(
        f"{text}. Next: {visible_line(error.next_step, ERROR_LIMIT)}" if error.next_step else text
    )


def _result(answer: BaseModel | Linked) -> CallToolResult:
    """Structured content, and the same JSON as text for clients that read only that (not indented)."""
    view, links = (answer.view, answer.links) if isinstance(answer, Linked) else (answer, [])
    return CallToolResult(
        content=[TextContent(type="text", text=view.model_dump_json()), *links],
        structured_content=view.model_dump(mode="json"),
    )
