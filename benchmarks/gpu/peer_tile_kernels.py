#!/usr/bin/env python3
"""What the public `tile_kernels` package (the reference deployment's gate, casts, mHC and Engram gate) takes for the same shapes.

Same clock as peer_torch.py: graphs of calls that rotate through more inputs than one, medians of seven. Needs `tile_kernels`
2.0.0, `tilelang` 0.1.15, PyTorch with CUDA and nvcc (the kernels are compiled when they are first called). Each kernel's result is
compared with a plain PyTorch form before it is timed: a peer that is not right is not a peer.
"""
import json
import logging
import sys

import torch
import tile_kernels
from tile_kernels import engram, mhc, moe, quant

from peer_torch import time_us

ROWS = (6, 48)
HIDDEN, STREAMS, EXPERTS, TOP_K = 5120, 4, 384, 6
SPLITS = 16  # partial sums of the mix product that the fused kernel adds
TURNS = 8


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def check(name, got, expected, tolerance):
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    if not error <= tolerance:
        raise RuntimeError(f"{name}: wrong result, relative error {float(error):.2g}")


def block_codes(x):
    """E4M3 codes and scales of blocks of 32 with a power-of-two scale, back as values."""
    blocks = x.float().unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448)))
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def values(codes, scales):
    return (codes.float().unflatten(-1, (-1, 32)) * scales.float().unsqueeze(-1)).flatten(-2)


def gate(rows):
    logits = [normal(rows, EXPERTS) for _ in range(TURNS)]
    bias = normal(EXPERTS) * 0.1
    call = lambda z: moe.moe_topk_gate_forward(z, TOP_K, False, 0, 1.5, 0, bias=bias)
    ids, _ = call(logits[0])
    scores = torch.nn.functional.softplus(logits[0]).sqrt()
    expected = (scores + bias).topk(TOP_K, -1).indices
    check("gate", ids.sort(-1).values, expected.sort(-1).values, 0)
    return [lambda z=z: call(z) for z in logits]


def swiglu(rows, width):
    inputs = [normal(rows, 2 * width, dtype=torch.bfloat16) for _ in range(TURNS)]
    call = lambda x: quant.swiglu_forward_and_per_token_cast(x, "e4m3", 32, round_sf=True, clamp_value=10.0)
    gate_part, up = inputs[0].float().chunk(2, -1)
    expected = torch.nn.functional.silu(gate_part.clamp(max=10.0)) * up.clamp(-10.0, 10.0)
    check("swiglu", values(*call(inputs[0])), expected, 0.05)
    return [lambda x=x: call(x) for x in inputs]


def cast(rows, width):
    inputs = [normal(rows, width, dtype=torch.bfloat16) for _ in range(TURNS)]
    call = lambda x: quant.per_token_cast(x, "e4m3", 32, round_sf=True)
    check("cast", values(*call(inputs[0])), block_codes(inputs[0]), 0.01)
    return [lambda x=x: call(x) for x in inputs]


def norm_cast(rows, width):
    inputs = [normal(rows, width, dtype=torch.bfloat16) for _ in range(TURNS)]
    weight = normal(width, dtype=torch.bfloat16)
    call = lambda x: quant.norm_forward_and_per_token_cast(x, weight, 1e-6, "e4m3", 32, round_sf=True)
    x = inputs[0].float()
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    check("norm", values(*call(inputs[0])[0]), expected, 0.05)
    return [lambda x=x: call(x) for x in inputs]


def mhc_before(rows):
    """Sum of the mix product's parts, coefficients, Sinkhorn, collapse (no norm, no quantiser, no product)."""
    streams = [normal(rows, STREAMS, HIDDEN, dtype=torch.bfloat16) for _ in range(TURNS)]
    product, squares = normal(SPLITS, rows, 24), normal(SPLITS, rows).square() * HIDDEN * STREAMS / SPLITS
    scale, base = torch.full((3,), 0.1, device="cuda"), normal(24)
    post, comb = torch.empty(rows, STREAMS, device="cuda"), torch.empty(rows, STREAMS * STREAMS, device="cuda")
    out = torch.empty(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    call = lambda h: mhc.mhc_pre_big_fuse_fwd(product, squares, scale, base, h, post, comb, out, 1e-6, 0.0, 1e-6, 2.0, 20, SPLITS)
    call(streams[0])
    mixes = product.sum(0) * torch.rsqrt(squares.sum(0) / (STREAMS * HIDDEN) + 1e-6).unsqueeze(-1)
    weights = torch.sigmoid(mixes[:, :STREAMS] * scale[0] + base[:STREAMS])
    check("mHC collapse", out, (weights.unsqueeze(-1) * streams[0].float()).sum(1), 0.01)
    return [lambda h=h: call(h) for h in streams]


def mhc_after(rows):
    streams = [normal(1, rows, STREAMS, HIDDEN, dtype=torch.bfloat16) for _ in range(TURNS)]
    x = normal(1, rows, HIDDEN, dtype=torch.bfloat16)
    post, comb = normal(1, rows, STREAMS, 1), normal(1, rows, STREAMS, STREAMS)
    out = torch.empty_like(streams[0])
    call = lambda h: mhc.mhc_post_fwd(x, h, post, comb, out)
    call(streams[0])
    mixed = torch.einsum("brji,brjd->brid", comb, streams[0].float())
    check("mHC expand", out, mixed + post * x.float().unsqueeze(2), 0.01)
    return [lambda h=h: call(h) for h in streams]


def engram_gate(rows):
    streams = [normal(rows, STREAMS, HIDDEN, dtype=torch.bfloat16) for _ in range(TURNS)]
    kv, weight = normal(rows, STREAMS + 1, HIDDEN, dtype=torch.bfloat16), normal(STREAMS, HIDDEN)
    call = lambda h: engram.engram_gate_fwd(h, kv, weight, 1e-6, 1e-6, save_for_backward=False)[0]
    h, key = streams[0].float(), kv[:, :STREAMS].float()
    norm = lambda v: v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)
    dot = (norm(h) * norm(key) * weight).sum(-1, keepdim=True) * HIDDEN ** -0.5
    score = torch.sigmoid(dot.sign() * dot.abs().clamp_min(1e-6).sqrt())
    check("Engram gate", call(streams[0]), h + score * kv[:, STREAMS:].float(), 0.01)
    return [lambda h=h: call(h) for h in streams]


CASES = {
    "route 384 top 6": (gate,),
    "SwiGLU + quantise 576": (swiglu, 576),
    "quantise 2048": (cast, 2048),
    "RMS norm 1280 + quantise": (norm_cast, 1280),
    "RMS norm 5120 + quantise": (norm_cast, 5120),
    "mHC coefficients + collapse": (mhc_before,),
    "mHC expand": (mhc_after,),
    "Engram gate + inject": (engram_gate,),
}


def main():
    logging.getLogger("tilelang").setLevel(logging.WARNING)
    results, failed = [], 0
    for overlap in (False, True):
        tile_kernels.set_pdl(overlap)
        peer = "tile_kernels" + (", programmatic launch" if overlap else "")
        for name, (make, *shape) in CASES.items():
            for rows in ROWS:
                try:
                    us = time_us(make(rows, *shape), 8)
                except Exception as error:  # a peer that cannot run must not hide the others
                    text = (str(error).splitlines() or [type(error).__name__])[0]
                    print(f"not measured: {peer} {name}, {rows} rows: {text[:160]}")
                    failed += 1
                    continue
                results.append({"peer": peer, "name": name, "rows": rows, "us": us})
    print(f"{'peer':34} {'operation':30} {'rows':>4} {'us':>8}")
    for r in results:
        print(f"{r['peer']:34} {r['name']:30} {r['rows']:4} {r['us']:8.2f}")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"tile_kernels": tile_kernels.__version__, "device": torch.cuda.get_device_name(), "peers": results}, file,
                      indent=1)
    return 1 if failed and not results else 0


if __name__ == "__main__":
    sys.exit(main())
