"""For the Python reference of the site: a field's `doc=` text in the code is its docstring there."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class FieldDocs(griffe.Extension):
    """Reads `name: type = field(..., doc="text")`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and isinstance(attr.value, griffe.ExprCall):
            for argument in attr.value.arguments:
                if isinstance(argument, griffe.ExprKeyword) and argument.name == "doc":
                    attr.docstring = griffe.Docstring(ast.literal_eval(str(argument.value)), parent=attr)
