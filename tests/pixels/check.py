#!/usr/bin/env python3
"""Pixel values of packd against Hugging Face's Qwen2-VL image processors, the fast one (torchvision) and the slow one
(Pillow), on real images.

Usage: check.py PACKD_MODEL PROCESSOR_DIR IMAGE_FOLDER [COUNT]
Fails where a value differs by more than one of the 256 levels of a colour, or where a grid differs.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file
from transformers import AutoImageProcessor

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


def processors(folder):
    for name, options in (("fast", {"backend": "torchvision"}), ("slow", {"backend": "pil"})):
        yield name, AutoImageProcessor.from_pretrained(folder, **options)


def sample(folder, count):
    """Images of as many sizes and modes as there are."""
    kinds = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix.lower() not in SUFFIXES:
            continue
        with Image.open(path) as image:
            ratio = image.width / image.height
            if image.width * image.height > 30_000_000 or max(ratio, 1 / ratio) > 100:
                continue
            size = (image.width // 64, image.height // 64)
            kinds.setdefault((image.format, image.mode, size), path)
    # One of each format and mode first.
    chosen, seen = [], set()
    for (form, mode, _), path in kinds.items():
        if (form, mode) not in seen:
            seen.add((form, mode))
            chosen.append(path)
    rest = [path for path in kinds.values() if path not in chosen]
    step = max(1, len(rest) // max(1, count - len(chosen)))
    return (chosen + rest[::step])[:count]


def main():
    program, folder, images = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 50
    paths = sample(images, count)
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "pixels.safetensors"
        ours = {}
        for name, resizer in (("fast", "torchvision"), ("slow", "pillow")):
            subprocess.run(
                [program, "pixels", "--resizer", resizer, "--processor", folder, "-o", out, *paths], check=True
            )
            ours[name] = load_file(out)
    modes = {}
    faults = 0
    for name, processor in processors(folder):
        level = 1 / 255 / np.array(processor.image_std)
        level = np.repeat(level, processor.patch_size**2)
        worst, differing, values = 0.0, 0, 0
        for number, path in enumerate(paths):
            with Image.open(path) as image:
                modes[f"{image.format} {image.mode}"] = modes.get(f"{image.format} {image.mode}", 0) + 1
                # As in LLaVA-OneVision-2: one frame an image, so that a row is of one patch.
                done = processor(images=image.convert("RGB"), return_tensors="pt", temporal_patch_size=1)
            theirs, grid = done["pixel_values"].to(torch.float32).numpy(), done["image_grid_thw"].numpy()[0]
            own, own_grid = ours[name][f"{number}.pixel_values"], ours[name][f"{number}.image_grid_thw"]
            if list(grid) != list(own_grid) or theirs.shape != own.shape:
                print(f"{name}: {path}: grid {own_grid} {own.shape}, expected {grid} {theirs.shape}")
                faults += 1
                continue
            steps = np.abs(theirs - own) / level
            values += steps.size
            differing += int((steps > 0.01).sum())
            if steps.max() > 1.01:
                with Image.open(path) as image:
                    print(f"{name}: {path}: {image.format} {image.mode} {image.size}: {steps.max():.2f} levels, "
                          f"{(steps > 1.01).mean():.2%} of the values above one")
                faults += 1
            worst = max(worst, float(steps.max()))
        print(f"{name} ({type(processor).__name__}): {len(paths)} images, largest difference {worst:.3f} levels, "
              f"{differing / max(1, values):.2%} of {values} values differ")
    print("formats and modes:", ", ".join(f"{key} x{value // 2}" for key, value in sorted(modes.items())))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
