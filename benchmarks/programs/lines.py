"""A rank that writes LINES lines, each with its rank, its number and a checksum.

It writes as buffered output does, in pieces that know nothing of lines, or with `by-line` each line on its own.

Beside them it leaves when it began to write, and the CPU seconds of its whole life.
"""

import os
import sys
import time
import zlib

PIECE = 8192  # as buffered output has it

rank = int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ))
lines = int(sys.argv[1])
words = [b"step", b"loss=0.1234", b"accuracy=0.9", b"a somewhat longer word of text that a log may hold"]


def line(number):
    text = b"%d %d %s" % (rank, number, b" ".join(words[: 1 + number % 4]))
    return b"%s %08x\n" % (text, zlib.crc32(text))


text = b"".join(map(line, range(lines)))
if "by-line" in sys.argv:
    pieces = text.splitlines(keepends=True)
else:
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
began = time.time()
for piece in pieces:
    while piece:
        piece = piece[os.write(1, piece) :]
with open(os.path.join(os.environ["BENCHMARK_FOLDER"], f"rank-{rank}"), "w") as file:
    print(began, len(text), time.process_time(), file=file)
