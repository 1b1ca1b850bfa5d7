#!/usr/bin/env python3
"""The same forward pass in PyTorch, for comparison: random weights, packs of the lengths and grids of a JSON file.

Usage: torch_forward.py CONFIG.json WORK.json [--compile] [--repeat N]
WORK.json is what `packd model bench --work FILE` writes: a list of {"lengths": [...], "grids": [[t, h, w], ...]}.
Attention is torch.nn.attention.varlen. Prints one JSON object: seconds, tokens a second, peak memory.
"""

import argparse
import inspect
import json
import math
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

PARAMETERS = inspect.signature(varlen_attn).parameters


def attend(q, k, v, cu, longest, causal):
    options = {}
    if "window_size" in PARAMETERS:
        options["window_size"] = (-1, 0) if causal else (-1, -1)
    else:
        options["is_causal"] = causal
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in PARAMETERS:
            options["enable_gqa"] = True
        elif not attend.native_gqa:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return varlen_attn(q, k, v, cu, cu, longest, longest, **options)


attend.native_gqa = True


def weight(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


class Vision:
    def __init__(self, c):
        width, wide = c["hidden_size"], c["intermediate_size"]
        self.c, self.heads = c, c["num_attention_heads"]
        self.patch = weight(width, c["num_channels"] * c["patch_size"] ** 2)
        self.norm = (torch.ones(width, device="cuda", dtype=torch.bfloat16), weight(width))
        self.layers = [
            dict(n1=self.norm, qkv=weight(3 * width, width), qkv_b=weight(3 * width), proj=weight(width, width),
                 proj_b=weight(width), n2=self.norm, fc1=weight(wide, width), fc1_b=weight(wide),
                 fc2=weight(width, wide), fc2_b=weight(width))
            for _ in range(c["num_hidden_layers"])
        ]
        block = width * c["spatial_merge_size"] ** 2
        self.m0, self.m0_b = weight(block, block), weight(block)
        self.m2, self.m2_b = weight(c["out_hidden_size"], block), weight(c["out_hidden_size"])

    @staticmethod
    def turn(z, cos, sin):
        wide = z.float()
        even, odd = wide[..., 0::2], wide[..., 1::2]
        turned = torch.stack((-odd, even), -1).flatten(-2)
        return (wide * cos + turned * sin).to(z.dtype)

    def layer(self, x, w, cos, sin, cu, longest):
        n, width = x.shape
        y = F.layer_norm(x, (width,), *w["n1"], 1e-6)
        q, k, v = F.linear(y, w["qkv"], w["qkv_b"]).view(n, 3, self.heads, -1).unbind(1)
        out = attend(self.turn(q, cos, sin), self.turn(k, cos, sin), v.contiguous(), cu, longest, False)
        x = x + F.linear(out.reshape(n, width), w["proj"], w["proj_b"])
        y = F.layer_norm(x, (width,), *w["n2"], 1e-6)
        return x + F.linear(F.gelu(F.linear(y, w["fc1"], w["fc1_b"])), w["fc2"], w["fc2_b"])

    def __call__(self, rows, cos, sin, cu, longest):
        width = self.c["hidden_size"]
        x = F.layer_norm(F.linear(rows, self.patch), (width,), *self.norm, 1e-6)
        for w in self.layers:
            x = self.layer(x, w, cos, sin, cu, longest)
        x = F.layer_norm(x, (width,), *self.norm, 1e-6).view(-1, self.m0.shape[1])
        return F.linear(F.gelu(F.linear(x, self.m0, self.m0_b)), self.m2, self.m2_b)


class Decoder:
    def __init__(self, c):
        h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        self.d, self.h = d, h
        nq, nk = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
        ones = lambda n: torch.ones(n, device="cuda", dtype=torch.bfloat16)
        self.layers = [
            dict(n1=ones(h), q=weight(nq, h), k=weight(nk, h), v=weight(nk, h), o=weight(h, nq), qn=ones(d), kn=ones(d),
                 n2=ones(h), gate=weight(f, h), up=weight(f, h), down=weight(h, f))
            for _ in range(c["num_hidden_layers"])
        ]
        self.norm = ones(h)
        self.embedding = weight(c["vocab_size"], h)

    @staticmethod
    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def layer(self, x, w, cos, sin, cu, longest):
        s = x.shape[0]
        y = F.rms_norm(x, (self.h,), w["n1"], 1e-6)
        heads = lambda name: F.linear(y, w[name]).view(s, -1, self.d)
        q = self.rope(F.rms_norm(heads("q"), (self.d,), w["qn"], 1e-6), cos, sin)
        k = self.rope(F.rms_norm(heads("k"), (self.d,), w["kn"], 1e-6), cos, sin)
        out = attend(q, k, heads("v"), cu, longest, True)
        x = x + F.linear(out.reshape(s, -1), w["o"])
        y = F.rms_norm(x, (self.h,), w["n2"], 1e-6)
        return x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])

    def __call__(self, x, cos, sin, cu, longest):
        for w in self.layers:
            x = self.layer(x, w, cos, sin, cu, longest)
        return F.rms_norm(x, (self.h,), self.norm, 1e-6)


def sums(lengths):
    out = [0]
    for length in lengths:
        out.append(out[-1] + length)
    return torch.tensor(out, dtype=torch.int32, device="cuda")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("work")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    config, work = json.load(open(args.config)), json.load(open(args.work))
    text, vision = config["text_config"], config["vision_config"]
    torch.manual_seed(0)
    tower, decoder = Vision(vision), Decoder(text)
    theta = (text.get("rope_parameters") or {}).get("rope_theta") or text.get("rope_theta", 1e4)
    inverse = theta ** (-torch.arange(0, text["head_dim"], 2, device="cuda").float() / text["head_dim"])
    merge = vision["spatial_merge_size"] ** 2
    head = vision["hidden_size"] // vision["num_attention_heads"]

    # GQA is looked up once: some versions expand keys themselves, some refuse.
    q, k = weight(16, 4, 64), weight(16, 2, 64)
    try:
        attend(q, k, k, sums([16]), 16, True)
    except Exception:
        attend.native_gqa = False

    if args.compile:
        torch._dynamo.config.cache_size_limit = 256
        tower.layer = torch.compile(tower.layer, dynamic=True)
        decoder.layer = torch.compile(decoder.layer, dynamic=True)

    @torch.inference_mode()
    def run(pack):
        tokens = sum(pack["lengths"])
        ids = torch.randint(0, 1000, (tokens,), device="cuda")
        x = decoder.embedding[ids]
        patches = [t * h * w for t, h, w in pack["grids"]]
        if patches:
            n = sum(patches)
            rows = torch.randn(n, 3 * vision["patch_size"] ** 2, device="cuda", dtype=torch.bfloat16)
            angles = torch.rand(n, 1, head, device="cuda") * 10
            features = tower(rows, angles.cos(), angles.sin(), sums(patches), max(patches))
            x = torch.cat((x[: tokens - n // merge], features))
        positions = torch.cat([torch.arange(length, device="cuda") for length in pack["lengths"]])
        angles = positions[:, None, None] * inverse
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        return decoder(x, cos, sin, sums(pack["lengths"]), max(pack["lengths"]))

    for pack in work[:3] if args.compile else work[:1]:
        run(pack)
    torch.cuda.reset_peak_memory_stats()
    fastest = math.inf
    for _ in range(args.repeat):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for pack in work:
            run(pack)
        torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
    tokens = sum(sum(pack["lengths"]) for pack in work)
    print(json.dumps({
        "torch": torch.__version__, "compiled": args.compile, "tokens": tokens, "seconds": round(fastest, 4),
        "tokens_per_second": round(tokens / fastest), "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "native_gqa": attend.native_gqa,
    }))


if __name__ == "__main__":
    main()
