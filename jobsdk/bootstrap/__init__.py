"""What runs in the container: turns plan + node into processes, watches them and says what went wrong.

Standard library only, Python 3.8 or later, no import from the rest of jobsdk: `jobsdk.bootstrap.archive` packs this
folder into one small .pyz. The rest of jobsdk may import its pure parts (`contract`, `layout`).
"""

from __future__ import annotations
