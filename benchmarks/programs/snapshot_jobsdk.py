"""Lists the code folder FOLDER as a run would take it, then hashes it; writes the seconds as JSON."""

import json
import sys
import time
from pathlib import Path

from jobsdk.snapshot import copy

folder, expected = Path(sys.argv[1]), int(sys.argv[2])
copy.scan(Path(__file__).parent)  # what is imported on first use is import_and_validate's subject
began = time.monotonic()
listing = copy.scan(folder)
listed = time.monotonic()
assert len(listing.files) == expected, len(listing.files)
copy.fingerprint(folder)
print(json.dumps({"list": listed - began, "hash": time.monotonic() - listed}))
