import os

from mpi4py import MPI
from part import say, show_environment

show_environment()
world = MPI.COMM_WORLD
place = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
assert (world.size, world.rank) == place, "a world of its own"
say(world.allreduce(float(world.rank + 1)))
