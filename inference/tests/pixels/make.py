#!/usr/bin/env python3
"""Makes the images beside it and what Hugging Face's Qwen2-VL image processors make of them (expected.safetensors: for each
image its grid, and each value as the nearest of the 256 levels of its colour).

Made with transformers 5.24, torchvision 0.29 and Pillow 13.
"""

import pathlib
import struct
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file
from transformers import AutoImageProcessor

HERE = pathlib.Path(__file__).parent


def picture(width, height):
    random = np.random.default_rng(1)
    coarse = Image.fromarray(random.integers(0, 256, (height // 9, width // 9, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.BICUBIC)).astype(int)
    return Image.fromarray((smooth + random.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def save_png16(name, values, colour_type):
    """Pillow writes no PNG of 16 bits a colour."""
    height, width, _ = values.shape

    def chunk(tag, data):
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (HERE / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def save_images():
    rgb = picture(83, 61)
    with_alpha = rgb.copy()
    with_alpha.putalpha(Image.linear_gradient("L").resize(rgb.size))
    sixteen = np.asarray(rgb).astype(np.uint16) * 256 + np.random.default_rng(2).integers(0, 256, (61, 83, 3))
    rgb.save(HERE / "420.jpg", quality=80)
    rgb.save(HERE / "422.jpg", quality=70, subsampling=1)
    rgb.save(HERE / "444.jpg", quality=92, subsampling=0)
    rgb.save(HERE / "progressive.jpg", quality=60, progressive=True)
    rgb.convert("L").save(HERE / "grey.jpg", quality=75)
    rgb.convert("CMYK").save(HERE / "cmyk.jpg", quality=85)
    rgb.convert("P").save(HERE / "palette.gif")
    rgb.save(HERE / "lossy.webp", quality=70)
    with_alpha.save(HERE / "alpha.png")
    save_png16("rgb16.png", sixteen, 2)
    save_png16("grey16.png", sixteen[..., :1] // 200, 0)
    save_png16("grey_alpha16.png", sixteen[..., :2], 4)
    picture(60, 200).save(HERE / "columns_first.png")


def main():
    save_images()
    expected = {}
    for resizer, backend in (("torchvision", "torchvision"), ("pillow", "pil")):
        processor = AutoImageProcessor.from_pretrained(HERE, backend=backend)
        mean, std = (np.repeat(np.array(numbers), processor.patch_size**2)
                     for numbers in (processor.image_mean, processor.image_std))
        for path in sorted(HERE.glob("*.*")):
            if path.suffix not in {".jpg", ".png", ".gif", ".webp"}:
                continue
            # Made anew, as a colour that was transparent would be replaced otherwise.
            image = Image.fromarray(np.asarray(Image.open(path).convert("RGB")))
            done = processor(images=image, return_tensors="np", temporal_patch_size=1)
            levels = (done["pixel_values"] * std + mean) * 255
            assert np.abs(levels - levels.round()).max() < 1e-3
            expected[f"{path.name}.{resizer}"] = levels.round().astype(np.uint8)
            expected[f"{path.name}.grid"] = done["image_grid_thw"].astype(np.uint8)
    save_file(expected, HERE / "expected.safetensors")


if __name__ == "__main__":
    main()
