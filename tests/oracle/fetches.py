"""Cases about the image fetcher, against an HTTP server on the loopback; its address reads <host> in outcomes."""

import contextlib
from typing import Any

from tests.oracle.outcome import CRASH_TYPES, Json, Module, exc_record, guard


def run_fetch(mod: Module, case: Json) -> Json:
    """Fetch from a loopback http.server; addresses are replaced by <host>."""
    import http.server
    import threading

    spec = case["input"]
    seen = []

    class H(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            code, headers, body = 404, {}, b"missing"
            route = spec["routes"].get(self.path)
            if route:
                code = route.get("status", 200)
                headers = {k: v.replace("<host>", base) for k, v in route.get("headers", {}).items()}
                body = b"x" * route["size"] if "size" in route else route.get("body", "").encode()
            self.send_response(code)
            if not (spec["routes"].get(self.path) or {}).get("no_length"):
                self.send_header("Content-Length", str(len(body)))
            for k, v in headers.items():
                self.send_header(k, v)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *a: Any) -> None:
            pass

    srv = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
    port = srv.server_address[1]
    base = f"127.0.0.1:{port}"
    th = threading.Thread(target=srv.serve_forever, args=(0.05,), daemon=True)
    th.start()
    calls = []

    def clean(s: Any) -> Any:
        return s.replace(base, "<host>").replace(f"localhost:{port}", "<localhost>").replace(str(port), "<port>")

    try:
        f = (
            mod.ReqwestImageFetcher.with_max_bytes(spec["max_bytes"])
            if "max_bytes" in spec
            else mod.ReqwestImageFetcher()
        )
        flt = spec.get("filter")
        if flt is not None:

            def check(host: str, address: str) -> Any:
                calls.append([clean(host), clean(address)])
                if flt == "allow":
                    return True
                if flt == "deny":
                    return False
                if flt == "raise":
                    raise RuntimeError("no")
                if flt == "one":
                    return 1
                if flt == "none":
                    return None
                if flt == "first":
                    return len(calls) == 1
                return host == flt

            f = guard("filter", f.with_destination_filter, check if flt != "not_callable" else 7)
        url = spec["url"].replace("<host>", base).replace("<port>", str(port))
        try:
            data = f.fetch(url)
            out = {"ok": True, "len": len(data), "type": type(data).__name__}
        except Exception as e:
            rec = exc_record(e, "fetch")
            if rec["type"] in CRASH_TYPES:
                return {"error": rec}
            rec["message"] = clean(rec["message"])
            if spec.get("loose_message"):
                rec["message"] = "<transport text>"
            out = {"ok": False, "fetch_error": rec}
        out["requests"] = seen
        if flt is not None:
            out["filter_calls"] = sorted(map(list, set(map(tuple, calls))))
        return out
    finally:
        srv.shutdown()
        srv.server_close()
