#!/usr/bin/python3
"""Sums a vector over all ranks, again and again, and verifies each sum."""

import array
import sys
import time

import mpi4py

# One thread: Open MPI then needs no atomic operations of 16 bytes, which not every virtual CPU has.
mpi4py.rc.threads = False
from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
count = int(sys.argv[2]) if len(sys.argv) > 2 else 16384

# Small whole numbers: their sums are exact.
mine = array.array("d", [rank + number % 7 for number in range(count)])
total = array.array("d", bytes(8 * count))
want = array.array("d", [sum(range(ranks)) + ranks * (number % 7) for number in range(count)])

world.Barrier()
started = time.monotonic()
for number in range(rounds):
    world.Allreduce([mine, MPI.DOUBLE], [total, MPI.DOUBLE], MPI.SUM)
    if total != want:
        sys.exit(f"rank {rank}: the sum of round {number} is wrong")
took = time.monotonic() - started
if rank == 0:
    print(f"{rounds} sums of {8 * count} bytes over {ranks} ranks, all right, {1e3 * took / rounds:.2f} ms each")
