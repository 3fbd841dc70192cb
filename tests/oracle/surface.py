"""Cases about public names, members, bases, and small expressions."""

import json

from tests.oracle.observe import TOKEN_NAMES
from tests.oracle.outcome import ALWAYS_CRASH, Json, Module, exc_record


def run_surface(mod: Module, case: Json) -> Json:
    spec = case["input"]
    what = spec["what"]
    if what == "names":
        return {
            "names": sorted(n for n in spec["names"] if hasattr(mod, n)),
            "image_token_id": mod.IMAGE_SPECIAL_TOKEN_ID,
            "all_has": sorted(n for n in spec["names"] if n in getattr(mod, "__all__", [])),
        }
    if what == "members":
        cls = getattr(mod, spec["cls"])
        return {
            "members": sorted(n for n in dir(cls) if not n.startswith("_"))
            if spec.get("strict")
            else sorted(n for n in spec["members"] if hasattr(cls, n))
        }
    if what == "bases":
        return {
            c: sorted(
                b
                for b in spec["bases"]
                if issubclass(
                    getattr(mod, c),
                    getattr(mod, b, None) or {"Exception": Exception, "ValueError": ValueError}.get(b, int),
                )
            )
            for c in spec["classes"]
        }
    if what == "defaults":
        return {n: getattr(mod.SpecialToken, n).default_str() for n in TOKEN_NAMES}
    if what == "eval":
        out = []
        env = {n: getattr(mod, n) for n in dir(mod) if not n.startswith("_")}
        env["json"] = json
        crash = None
        for expr in spec["exprs"]:
            try:
                v = eval(expr, env)
                out.append([expr, v if isinstance(v, (str, int, float, bool, type(None), list, dict)) else repr(v)])
            except Exception as e:
                rec = exc_record(e, "eval")
                out.append([expr, {"error": [rec["type"], rec["message"]]}])
                if rec["type"] in ALWAYS_CRASH:
                    crash = crash or rec
        if crash:
            return {"error": crash}
        return {"values": out}
    raise ValueError(what)
