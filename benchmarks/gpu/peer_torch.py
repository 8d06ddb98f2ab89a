#!/usr/bin/env python3
"""What PyTorch and Triton take for the same shapes: a table and, with a file name, JSON.

Graphs of calls that rotate through more than the L2, medians of seven. These peers do less: no block scales in FP8 (one scale
for a tensor), no fixed order of sums. Needs PyTorch with CUDA; Triton where it is there.
"""
import json
import sys

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ROWS = (6, 48)
BF16 = {"router 384x5120": (384, 5120), "compressor 512x5120": (512, 5120), "head TP4 32320x5120": (32320, 5120)}
FP8 = {"q-a + kv 1792x5120": (1792, 5120), "q-b TP4 8192x1280": (8192, 1280), "wo-b TP4 5120x2048": (5120, 2048),
       "main 5120x15360": (5120, 15360), "head TP4 32320x5120, as FP8": (32320, 5120)}


def time_us(calls, repeats=4):
    """Median time of one call; `calls` is the rotation."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    times = []
    for _ in range(7):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / (repeats * len(calls)))
    return sorted(times)[3]


def copies(size):
    return max(2, min(24, -(-(256 << 20) // size)))


def bf16_product(rows, out, cols):
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(out, cols, device="cuda", dtype=torch.bfloat16) for _ in range(copies(out * cols * 2))]
    return time_us([lambda w=w: torch.nn.functional.linear(x, w) for w in weights])


def fp8_product(rows, out, cols):
    padded = -(-rows // 16) * 16
    one = torch.ones((), device="cuda")
    x = torch.randn(padded, cols, device="cuda").to(torch.float8_e4m3fn)
    weights = [torch.randn(out, cols, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies(out * cols))]
    return time_us([lambda w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
                    for w in weights])


if triton is not None:
    @triton.jit
    def norm_quantise(x, weight, codes, scales, eps, cols: tl.constexpr, block: tl.constexpr):
        row = tl.program_id(0)
        i = tl.arange(0, block)
        v = tl.load(x + row * cols + i, mask=i < cols, other=0.0).to(tl.float32)
        rs = 1.0 / tl.sqrt(tl.sum(v * v) / cols + eps)
        y = (v * rs * tl.load(weight + i, mask=i < cols, other=0.0).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        y = tl.reshape(y, (block // 32, 32))
        amax = tl.maximum(tl.max(tl.abs(y), axis=1), 1e-4)
        e = tl.ceil(tl.log2(amax / 448.0))
        q = (y * tl.exp2(-e)[:, None]).to(tl.float8e4nv)
        tl.store(codes + row * cols + i, tl.reshape(q, (block,)), mask=i < cols)
        b = tl.arange(0, block // 32)
        tl.store(scales + row * (cols // 32) + b, (e + 127).to(tl.uint8), mask=b < cols // 32)


def triton_norm(rows, cols):
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    codes = torch.empty(rows, cols, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, cols // 32, device="cuda", dtype=torch.uint8)
    block = triton.next_power_of_2(cols)
    return time_us([lambda: norm_quantise[(rows,)](x, weight, codes, scales, 1e-20, cols, block, num_warps=8)], 64)


def main():
    results = []

    def note(peer, name, rows, function, *args):
        try:
            us = function(rows, *args)
        except Exception as error:  # a peer that cannot run must not hide the others
            print(f"not measured: {peer} {name}: {str(error).splitlines()[0][:120]}")
            return
        results.append({"peer": peer, "name": name, "rows": rows, "us": us})

    for rows in ROWS:
        for name, shape in BF16.items():
            note("PyTorch BF16", name, rows, bf16_product, *shape)
        for name, shape in FP8.items():
            note("PyTorch FP8, one scale", name, rows, fp8_product, *shape)
        if triton is not None:
            note("Triton", "RMS norm + quantise, 5120", rows, triton_norm, 5120)
    print(f"{'peer':24} {'operation':30} {'rows':>4} {'us':>8}")
    for r in results:
        print(f"{r['peer']:24} {r['name']:30} {r['rows']:4} {r['us']:8.2f}")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "peers": results}, file, indent=1)


if __name__ == "__main__":
    main()
