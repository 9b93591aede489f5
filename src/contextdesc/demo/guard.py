"""Who may talk to the page's server: the page itself. Other sites in the same browser may not.

A site that the user visits can send requests to 127.0.0.1; browsers mark them with `Origin` and
`Sec-Fetch-Site`. A name of that site that resolves to 127.0.0.1 (DNS rebinding) shows in `Host`.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Refuses requests that do not come from the page, and adds `HEADERS` to every answer.

    Args:
        host: the address that the server is bound to; an address that stands for every interface admits
            requests to any of this machine's addresses, but not to foreign names.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.names = {*LOCAL, host.lower()}
        self.any_address = is_every_interface(host)
        if self.any_address:
            self.names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        reason = self.refusal(Headers(scope=scope), scope["path"])
        if reason is None:
            await self.app(scope, receive, send_guarded)
        else:
            await JSONResponse({"error": reason}, 403)(scope, receive, send_guarded)

    def refusal(self, headers: Headers, path: str) -> str | None:
        """Why a request is refused, or None."""
        host = headers.get("host", "")
        if not self._is_ours(_host_name(host)):
            return f"host {host!r} is not this server: open the address that contextdesc demo printed"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return f"requests from {origin} are refused"
        site = headers.get("sec-fetch-site", "none")
        followed_link = path == "/" and headers.get("sec-fetch-dest") == "document"
        if site not in ("same-origin", "none") and not followed_link:
            return "requests from other sites are refused"
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self.names or (self.any_address and _is_address(name))


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_every_interface(host: str) -> bool:
    """Whether a server bound to `host` listens on all addresses of the machine."""
    return host == "" or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
