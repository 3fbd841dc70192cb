"""Cases about the image fetcher, against an HTTP server on the loopback; its address reads <host> in outcomes."""

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.oracle.outcome import CRASH_TYPES, Json, Module, exc_record, guard


class Origin(ThreadingHTTPServer):
    """Answers by the routes of a case, and notes which paths were asked for."""

    def __init__(self, routes: Json) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.routes = routes
        self.seen: list[str] = []
        self.port = self.server_address[1]
        self.base = f"127.0.0.1:{self.port}"

    def clean(self, text: str) -> str:
        """`text` without what differs from run to run."""
        named = text.replace(self.base, "<host>").replace(f"localhost:{self.port}", "<localhost>")
        return named.replace(str(self.port), "<port>")


class Answer(BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        code, headers, body = 404, {}, b"missing"
        route = self.server.routes.get(self.path) or {}
        if route:
            code = route.get("status", 200)
            headers = {k: v.replace("<host>", self.server.base) for k, v in route.get("headers", {}).items()}
            body = b"x" * route["size"] if "size" in route else route.get("body", "").encode()
        self.send_response(code)
        if not route.get("no_length"):
            self.send_header("Content-Length", str(len(body)))
        for k, v in headers.items():
            self.send_header(k, v)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *a: Any) -> None:
        pass


def destination_filter(answer: str, calls: list[list[str]], clean: Callable[[str], str]) -> Callable[[str, str], Any]:
    """A filter that notes its calls and answers as the case says, or for one host alone."""
    fixed = {"allow": True, "deny": False, "one": 1, "none": None}

    def check(host: str, address: str) -> Any:
        calls.append([clean(host), clean(address)])
        if answer == "raise":
            raise RuntimeError("no")
        if answer == "first":
            return len(calls) == 1
        return fixed.get(answer, host == answer)

    return check


def run_fetch(mod: Module, case: Json) -> Json:
    """Fetch from a server on the loopback; addresses are replaced by <host>."""
    server = Origin(case["input"]["routes"])
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        return fetch_from(server, mod, case["input"])
    finally:
        server.shutdown()
        server.server_close()


def fetch_from(server: Origin, mod: Module, spec: Json) -> Json:
    limited = "max_bytes" in spec
    fetcher = mod.ReqwestImageFetcher.with_max_bytes(spec["max_bytes"]) if limited else mod.ReqwestImageFetcher()
    calls: list[list[str]] = []
    answer = spec.get("filter")
    if answer is not None:
        check = 7 if answer == "not_callable" else destination_filter(answer, calls, server.clean)
        fetcher = guard("filter", fetcher.with_destination_filter, check)
    url = spec["url"].replace("<host>", server.base).replace("<port>", str(server.port))
    try:
        data = fetcher.fetch(url)
        out = {"ok": True, "len": len(data), "type": type(data).__name__}
    except Exception as e:
        rec = exc_record(e, "fetch")
        if rec["type"] in CRASH_TYPES:
            return {"error": rec}
        rec["message"] = "<transport text>" if spec.get("loose_message") else server.clean(rec["message"])
        out = {"ok": False, "fetch_error": rec}
    out["requests"] = server.seen
    if answer is not None:
        out["filter_calls"] = sorted(map(list, set(map(tuple, calls))))
    return out
