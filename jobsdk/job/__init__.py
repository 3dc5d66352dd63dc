"""What a user writes: the typed job models, YAML in and out, expressions and validation. All of it works offline."""

from __future__ import annotations
