"""Cases about images: token counts, preprocessing, and resolving with a quota."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

from tests.oracle.outcome import CRASH_TYPES, Json, Module, exc_record, guard


def image_bytes(spec: Json) -> bytes:
    if "file" in spec:
        data = Path(__file__).with_name("images").joinpath(Path(spec["file"]).name).read_bytes()
        return data + b"\0" * (spec["pad_to"] - len(data)) if "pad_to" in spec else data
    if "png" in spec:  # a 1-bit black PNG of any size
        w, h = spec["png"]

        def chunk(t: Any, d: bytes) -> Any:
            return struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))

        rows = (b"\0" + b"\0" * ((w + 7) // 8)) * h
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 1, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 9))
            + chunk(b"IEND", b"")
        )
    if "b64" in spec:
        return base64.b64decode(spec["b64"])
    if "repeat" in spec:
        return base64.b64decode(spec["repeat"][0]) * spec["repeat"][1]
    raise ValueError("bad image spec")


def sniff(data: bytes) -> str:
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:4] == b"GIF8":
        return "gif"
    return "other"


def obs_image_info(mod: Module, i: Any) -> Json:
    data = bytes(i.data)
    return {"format": sniff(data), "width": i.width, "height": i.height, "nonempty": len(data) > 0}


def image_source_from(mod: Module, s: Any) -> Any:
    kw = {}
    if "path" in s:
        kw["path"] = s["path"]
    args = [s["detail"]] if "detail" in s else []
    if "url" in s:
        return mod.UrlImageSource(s["url"], *args, **kw)
    if "data_url" in s:
        return mod.DataUrlImageSource(s["data_url"], *args, **kw)
    data = image_bytes(s)
    if s.get("as") == "data_url":
        url = f"data:{s.get('media_type', 'image/png')};base64," + base64.b64encode(data).decode()
        return mod.DataUrlImageSource(url, *args, **kw)
    return mod.BytesImageSource(data, *args, **kw)


def run_image(mod: Module, case: Json) -> Json:
    spec = case["input"]
    if "adjust" in spec:
        infos = [mod.ImageInfo(b"x", w, h) for w, h in spec["adjust"]]
        m = guard("construct", mod.MultiModalData, infos)
        return {"empty": m.is_empty(), "n": len(m.images), "adjustment": guard("adjust", m.image_token_adjustment)}
    if "adjust_each" in spec:
        out = []
        for w, h in spec["adjust_each"]:
            try:
                out.append([w, h, mod.MultiModalData([mod.ImageInfo(b"x", w, h)]).image_token_adjustment()])
            except Exception as e:
                rec = exc_record(e, "adjust")
                out.append([w, h, [rec["type"], rec["message"]]])
        if all(isinstance(x[2], list) and x[2][0] in CRASH_TYPES for x in out):
            return {"error": {"type": out[0][2][0], "message": out[0][2][1], "stage": "adjust"}}
        return {"grid": out}
    if "preprocess" in spec:
        p = spec["preprocess"]
        o = guard("options", mod.PreprocessOptions, p["detail"], p["max"], p["low_max"])
        pre = guard("construct", mod.OpenCvImagePreprocessor)
        info = guard("preprocess", pre.preprocess, image_bytes(p), o)
        return {"image": obs_image_info(mod, info)}
    # resolve: list of calls with one quota
    resolver = guard("construct", lambda: mod.ImageResolver(mod.ReqwestImageFetcher(), mod.OpenCvImagePreprocessor()))
    quota = guard("construct", mod.ImageQuota)
    out = []
    for call in spec["resolve"]:
        try:
            sources = [image_source_from(mod, s) for s in call]
            reps = spec.get("repeat_sources")
            if reps:
                sources = sources * reps
            m = resolver.resolve(sources, quota)
            step = {
                "images": [obs_image_info(mod, i) for i in m.images],
                "empty": m.is_empty(),
                "adjustment": m.image_token_adjustment(),
            }
            if len(step["images"]) > 8:
                step["images"] = [step["images"][0], len(step["images"])]
        except Exception as e:
            step = {"error": exc_record(e, "resolve")}
            if step["error"]["type"] in CRASH_TYPES:
                return {"error": step["error"]}
        step["quota"] = [quota.image_count(), quota.byte_size()]
        out.append(step)
    return {"calls": out}
