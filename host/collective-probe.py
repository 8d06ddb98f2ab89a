#!/usr/bin/env python3
"""Checks the collectives between all ranks without a model; `spark topology probe NODE` prints how to run it.

Every rank runs it at the same time inside the serving image. Patterns are whole numbers small enough that every
sum is exact in BF16, so results are compared for equality. It checks the library collectives (NCCL); one-shot
transports need the serving framework's own groups and are reported as not covered. One JSON line on stdout.
"""

import argparse
import datetime
import json
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--transport", default="")
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    return parser.parse_args()


def pattern(torch, length, dtype, device, rank):
    return (torch.arange(length, device=device) % 7 + rank).to(dtype)


def check(torch, dist, args, length, dtype, device):
    """All-reduce, all-gather, reduce-scatter of one length; returns the collectives that were wrong."""
    wrong = []
    parts = [pattern(torch, length, dtype, device, rank) for rank in range(args.world_size)]
    total = torch.stack(parts).float().sum(0).to(dtype)
    mine = parts[args.rank].clone()
    dist.all_reduce(mine)
    if not torch.equal(mine, total):
        wrong.append("all_reduce")
    gathered = [torch.empty_like(parts[0]) for _ in parts]
    dist.all_gather(gathered, parts[args.rank])
    if not all(torch.equal(a, b) for a, b in zip(gathered, parts)):
        wrong.append("all_gather")
    if args.backend == "nccl":
        inputs = [parts[args.rank].clone() for _ in parts]
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, inputs)
        if not torch.equal(out, total):
            wrong.append("reduce_scatter")
    return wrong


def main():
    args = parse_arguments()
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", 0) if args.backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        args.backend,
        init_method=f"tcp://{args.master_addr}:{args.master_port}",
        rank=args.rank,
        world_size=args.world_size,
        timeout=datetime.timedelta(seconds=90),
    )
    checks, faults, timings = 0, [], {}
    for dtype in (torch.bfloat16, torch.float32):
        for length in (1, 17, 1024, 2 << 20):
            started = time.monotonic()
            wrong = check(torch, dist, args, length, dtype, device)
            name = f"{str(dtype).removeprefix('torch.')}-{length}"
            timings[name] = round(time.monotonic() - started, 6)
            faults += [f"{collective} {name}" for collective in wrong]
            checks += 1
    value = torch.full((4,), float(args.rank), device=device)
    dist.broadcast(value, src=0)
    if value.abs().sum().item() != 0:
        faults.append("broadcast")
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({
        "rank": args.rank, "world_size": args.world_size, "transport": args.transport, "backend": args.backend,
        "one_shot_covered": False, "passed": not faults, "checks": checks, "faults": faults, "timings_s": timings,
    }))
    return 0 if not faults else 1


if __name__ == "__main__":
    sys.exit(main())
