#!/usr/bin/env python3
"""Torch files of packd in real torch, and files of real torch in packd.

Usage: check.py EXAMPLE        (torch; EXAMPLE is built by: cargo build --release -p packd-inference --example torch_file)
"""

import argparse
import io
import itertools
import json
import pickle
import random
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import torch

EXAMPLE = sys.argv[1]
SHAPES = [(), (0,), (3, 4), (2, 0, 5)]
checked = 0


def check(condition, what):
    global checked
    checked += 1
    if not condition:
        sys.exit(f"FAILED: {what}")


def raw(tensor):
    flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def written(path, *style):
    subprocess.run([EXAMPLE, "write", str(path), *style], check=True)


def check_written(file):
    model = file["model"]
    names = sorted({name.rpartition(".")[0] for name in model if not name.endswith("_extra_state")})
    check(len(names) == 15, f"15 dtypes: {names}")
    for name, (number, shape) in itertools.product(names, enumerate(SHAPES)):
        tensor = model[f"{name}.{number}"]
        check(tensor.dtype == getattr(torch, name), f"{name}: {tensor.dtype}")
        check(tuple(tensor.shape) == shape and tensor.is_contiguous(), f"{name}: {tensor.shape}")
        bytes_ = raw(tensor)
        check(bytes_ == bytes(place % 3 == 0 for place in range(len(bytes_))), f"{name}.{number}: bytes")
    check(file["checkpoint_version"] == 3.0 and file["iteration"] == 0, "header")
    check(file["values"] == [None, False, -1, 1 << 62, bytes(range(256)), "é", ([],)], "values")
    args = file["args"]
    check(getattr(args, "num_layers") == 36 and args.lr == 0.5 and vars(args)["num_layers"] == 36, "args")
    check(not hasattr(args, "other"), "args have nothing else")
    check(model["norm._extra_state"].numel() == 0, "norm._extra_state")


with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)

    # What packd writes by default.
    path = folder / "model_optim_rng.pt"
    written(path)
    check(torch.serialization.get_unsafe_globals_in_checkpoint(path) == [], "no unsafe globals")
    for mmap in (False, True):
        check_written(torch.load(path, weights_only=True, mmap=mmap))
    file = torch.load(path, weights_only=False)
    check_written(file)
    check(file["args"]["num_layers"] == 36, "args as a dict")
    state = file["model"]["linear._extra_state"]
    check(state.dtype == torch.uint8 and state.numel() == 0, "empty _extra_state")
    older = file["model"]["older._extra_state"]
    check(pickle.loads(older.numpy().tobytes()) is None, "older _extra_state")
    with torch.device("meta"):
        torch.load(path, weights_only=True, map_location="meta")

    # The container is a sound zip, laid out as torch's are, and always of the same bytes.
    with zipfile.ZipFile(path) as zip_:
        check(zip_.testzip() is None, "CRC-32")
        check(zip_.namelist()[0] == "model_optim_rng/data.pkl", "stem")
        check(all(info.compress_type == zipfile.ZIP_STORED for info in zip_.infolist()), "stored")
    again = folder / "again" / "model_optim_rng.pt"
    again.parent.mkdir()
    written(again)
    check(path.read_bytes() == again.read_bytes(), "the same bytes again")

    # As the reference converter writes it: needs two classes that the caller declares safe.
    reference = folder / "reference.pt"
    written(reference, "reference")
    unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(reference))
    check(unsafe == ["_io.BytesIO", "argparse.Namespace"], unsafe)
    with torch.serialization.safe_globals([io.BytesIO, argparse.Namespace]):
        check_written(torch.load(reference, weights_only=True))
    file = torch.load(reference, weights_only=False)
    state = file["model"]["linear._extra_state"]
    check(isinstance(state, io.BytesIO) and torch.load(state, weights_only=True) is None, "BytesIO")
    check(type(file["args"]) is argparse.Namespace, "Namespace")

    # Random views, written by torch and read by packd.
    random.seed(3)
    torch.manual_seed(3)
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint8, torch.bool, torch.uint16]
    model = {}
    for number in range(500):
        dims = random.randint(0, 4)
        tensor = torch.randint(0, 2, [random.randint(0, 5) for _ in range(dims)]).to(random.choice(dtypes))
        for _ in range(random.randint(0, 3)):
            if tensor.dim() == 0:
                break
            axis = random.randrange(tensor.dim())
            match random.randrange(4):
                case 0:
                    tensor = tensor.transpose(axis, random.randrange(tensor.dim()))
                case 1:
                    tensor = tensor.narrow(axis, (start := random.randint(0, tensor.shape[axis])),
                                           random.randint(0, tensor.shape[axis] - start))
                case 2:
                    tensor = tensor[(slice(None),) * axis + (slice(None, None, random.randint(1, 3)),)]
                case 3:
                    tensor = tensor.unsqueeze(axis)
        if random.random() < 0.1:
            tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
        model[f"t{number}"] = tensor
    for options in ({}, {"pickle_protocol": 4}):
        torch.save({"model": model}, folder / "views.pt", **options)
        out = subprocess.run([EXAMPLE, "sums", str(folder / "views.pt")], check=True, capture_output=True)
        found = json.loads(out.stdout)
        check(found.keys() == model.keys(), "names")
        for name, tensor in model.items():
            expected = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), zlib.crc32(raw(tensor))]
            check(found[name] == expected, f"{name}: {found[name]} is not {expected}")

print(f"{checked} passed, 0 failed")
