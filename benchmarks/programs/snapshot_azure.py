"""Lists the code folder FOLDER and hashes it with what azure-ai-ml's `Code` asset calls; writes the seconds as JSON."""

import json
import os
import sys
import time

from azure.ai.ml._utils._asset_utils import get_content_hash, get_ignore_file, get_upload_files_from_folder

folder, expected = sys.argv[1], int(sys.argv[2])
here = os.path.dirname(__file__)
get_upload_files_from_folder(here, ignore_file=get_ignore_file(here))  # as for jobsdk
began = time.monotonic()
files = get_upload_files_from_folder(folder, ignore_file=get_ignore_file(folder))
listed = time.monotonic()
assert len(files) == expected, len(files)
get_content_hash(folder, get_ignore_file(folder))
print(json.dumps({"list": listed - began, "hash": time.monotonic() - listed}))
