"""How clients reach the server: standard input and output, or HTTP on loopback with a token of this start."""

import gc
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.types import ASGIApp

from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.application import NAME, build

HOST = "127.0.0.1"
TOKEN_VARIABLE = "PLUMBLINE_TOKEN"  # noqa: S105 - the name of a variable
"""What stands for the token in a client's configuration where this program does not know it."""

_MINTED = f"a reviewer is enrolled, so tokens are minted: plumbline token mint; put one into {TOKEN_VARIABLE}"


def stdio(home: Path | None, pythons: Iterable[Path] = ()) -> None:
    """Serve one client on standard input and output until it closes them; turns garbage collection on."""
    server = build(home, pythons)
    gc.freeze()
    gc.enable()
    server.run("stdio")


def http(port: int, home: Path | None, pythons: Iterable[Path] = (), *, announce_json: bool = False) -> None:
    """Serve HTTP on loopback until interrupted. Raises `UsageError` when the port is taken, and `Refused`.

    Address and token are told on standard error; with ``announce_json`` as one line on standard output. Where
    a reviewer is enrolled there is no token of this start: tokens are minted.
    """
    from plumbline_mcp.server.tokens import start_token_counts  # not for standard input: it starts quicker

    own = start_token_counts(home)
    listening = listen(port)
    port, token = listening.getsockname()[1], secrets.token_urlsafe(32) if own else ""
    application = http_application(home, port, token, pythons)
    stream = sys.stdout if announce_json else sys.stderr
    stream.write(announcement(port, token) if announce_json else client_configuration(port, token))
    stream.flush()
    anyio.run(_serve, application, listening)


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback only; port 0 takes a free one. Raises `UsageError`."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # the address is told before the server takes over: who comes first has to wait
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(
            f"port {port} cannot be used: {error}", "name another port, or 0 for a free one"
        ) from error
    return listening


def http_application(home: Path | None, port: int, token: str, pythons: Iterable[Path] = ()) -> ASGIApp:
    """The web application: no token is 401, a foreign Origin 403, a foreign Host 421.

    ``token`` is that of this start, empty where only minted ones count.
    """
    from plumbline_mcp.server.known_tokens import KnownTokens

    hosts = [f"{HOST}:{port}", f"localhost:{port}"]
    auth = AuthSettings(issuer_url=AnyHttpUrl(f"http://{HOST}:{port}"), resource_server_url=None)
    server = build(home, pythons, auth=auth, token_verifier=KnownTokens(home, token))
    return server.streamable_http_app(
        host=HOST,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        ),
    )


def announcement(port: int, token: str) -> str:
    """What a program reads at start: one line of JSON with address, token, process and configuration."""
    said = {"url": _url(port), "token": token or None, "pid": os.getpid(), **_configuration(port, token)}
    return json.dumps(said) + "\n"


def _url(port: int) -> str:
    return f"http://{HOST}:{port}/mcp"


def _configuration(port: int, token: str) -> dict[str, dict[str, Any]]:
    said = token or f"${{{TOKEN_VARIABLE}}}"
    entry = {"type": "http", "url": _url(port), "headers": {"Authorization": f"Bearer {said}"}}
    return {"mcpServers": {NAME: entry}}


def client_configuration(port: int, token: str) -> str:
    """What is printed at start: the address and the client's configuration."""
    configuration = json.dumps(_configuration(port, token), indent=2)
    whose = "the token is of this start only" if token else _MINTED
    return f"{NAME} serves {_url(port)} until Ctrl-C; {whose}\n{configuration}\n"


async def _serve(application: ASGIApp, listening: socket.socket) -> None:
    import uvicorn

    # No X-Forwarded-For: the peer's address says which user called, and a header must not.
    config = uvicorn.Config(application, log_level="warning", access_log=False, proxy_headers=False)
    await uvicorn.Server(config).serve(sockets=[listening])
