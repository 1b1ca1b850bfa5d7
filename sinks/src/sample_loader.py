"""How Energon turns the parts of one packed sample into the fields of its sample class.

Written by packd. Every list has one entry a sub-sample.
"""

import io
import json
import re

_PARTS = re.compile(r"json|img\d+_\d+\.(jpg|npy)")


def part_filter(part: str) -> bool:
    """True for the parts that `sample_loader` reads."""
    return _PARTS.fullmatch(part) is not None


def sample_loader(raw: dict) -> dict:
    """The fields of one packed sample, from its parts as Energon decoded them."""
    data = _part(raw, "json")
    if isinstance(data, (bytes, str)):
        data = json.loads(data)
    images = data["images"]
    positions = data.get("patch_positions") or [[""] * len(names) for names in images]
    return {
        "__key__": raw["__key__"],
        "__restore_key__": raw["__restore_key__"],
        "images": [[_part(raw, f"img{s}_{j}.jpg") for j in range(len(names))] for s, names in enumerate(images)],
        "prompts": data["prompts"],
        "captions": data["captions"],
        "patch_positions": [
            [_array(raw, f"img{s}_{j}.npy") if name else None for j, name in enumerate(names)]
            for s, names in enumerate(positions)
        ],
        "fps": data.get("fps"),
        "timestamp_decimal": data.get("timestamp_decimal"),
    }


def _part(raw: dict, name: str):
    if name not in raw:
        raise KeyError(f"packed sample {raw['__key__']}: part {name} is missing from the tar")
    return raw[name]


def _array(raw: dict, name: str):
    value = _part(raw, name)
    if isinstance(value, bytes):
        import numpy

        value = numpy.load(io.BytesIO(value), allow_pickle=False)
    return value
