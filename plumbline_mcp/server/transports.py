"""How clients reach the server: standard input and output, or HTTP on loopback with a token of this start."""

import gc
import hmac
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.types import ASGIApp

from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.application import NAME, build

HOST = "127.0.0.1"


class OneToken:
    """Accepts the one token that was made at this start."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who the token stands for; None for any other token."""
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token):
            return None
        return AccessToken(token="-", client_id="local", scopes=["agent"])  # noqa: S106 - the token stays here


def stdio(home: Path | None, pythons: Iterable[Path] = ()) -> None:
    """Serve one client on standard input and output until it closes them; turns garbage collection on."""
    server = build(home, pythons)
    gc.freeze()
    gc.enable()
    server.run("stdio")


def http(port: int, home: Path | None, pythons: Iterable[Path] = (), *, announce_json: bool = False) -> None:
    """Serve HTTP on loopback until interrupted. Raises `UsageError` when the port is taken.

    Address and token are told on standard error; with ``announce_json`` as one line on standard output.
    """
    listening = listen(port)
    port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
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
    """The web application: no token is 401, a foreign Origin 403, a foreign Host 421."""
    hosts = [f"{HOST}:{port}", f"localhost:{port}"]
    auth = AuthSettings(
        issuer_url=AnyHttpUrl(f"http://{HOST}:{port}"), resource_server_url=None, required_scopes=["agent"]
    )
    server = build(home, pythons, auth=auth, token_verifier=OneToken(token))
    return server.streamable_http_app(
        host=HOST,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        ),
    )


def announcement(port: int, token: str) -> str:
    """What a program reads at start: one line of JSON with address, token, process and configuration."""
    said = {"url": _url(port), "token": token, "pid": os.getpid(), **_configuration(port, token)}
    return json.dumps(said) + "\n"


def _url(port: int) -> str:
    return f"http://{HOST}:{port}/mcp"


def _configuration(port: int, token: str) -> dict[str, dict[str, Any]]:
    entry = {"type": "http", "url": _url(port), "headers": {"Authorization": f"Bearer {token}"}}
    return {"mcpServers": {NAME: entry}}


def client_configuration(port: int, token: str) -> str:
    """What is printed at start: the address and the client's configuration."""
    configuration = json.dumps(_configuration(port, token), indent=2)
    return f"{NAME} serves {_url(port)} until Ctrl-C; the token is of this start only\n{configuration}\n"


async def _serve(application: ASGIApp, listening: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(application, log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])
