"""The base of the typed models: fields with kinds, judged at construction and at every assignment.

A small base of our own, because it gives all findings at once and one verdict for Python and YAML within the import
budget, which attrs and cattrs exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from jobsdk.errors import ValidationError
from jobsdk.findings import Path, Report, nearest, one_of, show
from jobsdk.job.kinds import INVALID, Kind, MappingOf, Rewrite, Schema, TypeName

if TYPE_CHECKING:
    import inspect

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


M = TypeVar("M", bound="Model")

#: How many unknown keys of one mapping are reported one by one.
UNKNOWN_LIMIT = 20


class Field:
    """What a model knows of one of its fields."""

    __slots__ = ("default", "default_factory", "doc", "kind")

    def __init__(self, kind: Kind, default: Any, default_factory: Callable[[], Any] | None, doc: str) -> None:
        self.kind = kind
        self.default = default
        self.default_factory = default_factory
        self.doc = doc

    def initial(self) -> Any:
        """The value of the field when none is given."""
        if isinstance(self.kind, MappingOf) and self.default_factory:
            return self.kind.empty()
        return self.default_factory() if self.default_factory else self.default


def field(kind: Kind, *, default: Any = None, default_factory: Callable[[], Any] | None = None, doc: str = "") -> Any:
    """Declares a field of a model. None always stands for "not given", that is, for the default."""
    return Field(kind, default, default_factory, doc)


class _Signature:
    """Gives `help()` and notebooks the constructor's parameters; made only when somebody looks."""

    def __get__(self, instance: object, owner: type[Model]) -> inspect.Signature:
        import inspect

        return inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=spec.initial())
                for name, spec in owner._fields.items()
            ]
        )


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Model:
    """The base of models. Construction and assignment raise `ValidationError` with everything that is wrong."""

    _fields: ClassVar[dict[str, Field]] = {}
    #: Other names that people write for a field, for suggestions only; the keyword `hints` of a class.
    _hints: ClassVar[Mapping[str, str]] = {}
    #: Keys that Azure ML writes when it shows what it has; they are ignored, as azure-ai-ml ignores them.
    _ignored: ClassVar[frozenset[str]] = frozenset()
    __signature__: ClassVar[Any] = _Signature()

    def __init_subclass__(cls, hints: Mapping[str, str] | None = None) -> None:
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        for name in declared:
            delattr(cls, name)
        cls._fields = {**declared, **{name: spec for name, spec in cls._fields.items() if name not in declared}}
        cls._hints = hints or {}

    def __init__(self, **values: Any) -> None:
        report = Report()
        self._fill(values, (), report)
        ValidationError.raise_for(report)

    @classmethod
    def structure(cls: type[M], values: Mapping[Any, Any], path: Path, report: Report) -> M:
        """A model from plain data; what is wrong goes to the report, and the field keeps its default."""
        model = cls.__new__(cls)
        model._fill(values, path, report)
        return model

    def _fill(self, values: Mapping[Any, Any], path: Path, report: Report) -> None:
        for name, spec in self._fields.items():
            given = values.get(name)
            value = INVALID if given is None else spec.kind.structure(given, (*path, name), report)
            object.__setattr__(self, name, spec.initial() if value is INVALID else value)
        unknown = [name for name in values if name not in self._fields and name not in self._ignored]
        for name in unknown[:UNKNOWN_LIMIT]:
            self._unknown(name, values[name], path, report)
        if len(unknown) > UNKNOWN_LIMIT:
            report.error(path, f"has {len(unknown) - UNKNOWN_LIMIT} more keys that are not known here")

    @classmethod
    def _unknown(cls, name: Any, value: Any, path: Path, report: Report) -> None:
        """Reports a key that no field has."""
        report.error((*path, str(name)), "there is no such key here", cls._suggest(name), key=True)

    @classmethod
    def _suggest(cls, name: Any) -> str:
        hint = cls._hints.get(name) if isinstance(name, str) else None
        near = hint or nearest(name, cls._fields)
        return f"did you mean '{near}'?" if near else f"the keys here are {', '.join(cls._fields)}"

    def check(self, path: Path, report: Report) -> None:
        """Judges the fields again: what they hold may have been changed in place."""
        for name, spec in self._fields.items():
            value = getattr(self, name)
            if value is not None:
                spec.kind.structure(value, (*path, name), report)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        report = Report()
        spec = self._fields.get(name)
        if spec is None:
            self._unknown(name, value, (), report)
        else:
            given = value
            value = spec.initial() if given is None else spec.kind.structure(given, (name,), report)
        ValidationError.raise_for(report)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise KeyError(name)
        return getattr(self, name)

    def to_dict(self, rewrite: Rewrite | None = None) -> dict[str, Any]:
        """The model as plain data, without what has its default value. `rewrite` is applied to local paths."""
        data = {}
        for name, spec in self._fields.items():
            value = getattr(self, name)
            if value is not None and (value != spec.initial() or name == "type"):
                data[name] = spec.kind.dump(value, rewrite)
        return data

    def __eq__(self, other: object) -> bool:
        return (
            self.to_dict() == other.to_dict()
            if isinstance(other, Model) and type(other) is type(self)
            else NotImplemented
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = (
            f"{name}={getattr(self, name)!r}"
            for name, spec in self._fields.items()
            if getattr(self, name) != spec.initial()
        )
        return f"{type(self).__name__}({', '.join(given)})"

    @classmethod
    def schema(cls) -> Schema:
        """The JSON Schema of the model's plain data. A field that is null is one that is not given."""
        doc = (cls.__doc__ or "").strip().partition("\n\n")[0]
        return {
            "type": "object",
            "description": " ".join(doc.split()),
            "properties": {
                **{name: _optional(spec) for name, spec in cls._fields.items()},
                **{name: {} for name in sorted(cls._ignored)},
            },
            "additionalProperties": False,
        }


def _optional(spec: Field) -> Schema:
    schema = spec.kind.schema()
    branches = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    described: Schema = {"description": spec.doc} if spec.doc else {}
    return {**described, "anyOf": [*branches, {"type": "null"}]}


class Nested(Kind):
    """A model: an object of the class, or a mapping with its fields."""

    def __init__(self, model: type[Model], says: str = "") -> None:
        self.model = model
        self.says = says or f"a mapping or {model.__name__}(...)"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, self.model):
            value.check(path, report)
            return value
        if isinstance(value, Mapping):
            return self.model.structure(value, path, report)
        return self.refuse(value, path, report)

    def schema(self) -> Schema:
        return reference(self.model)

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return value.to_dict(rewrite)


class Tagged(Kind):
    """One of several models, told apart by `type`, whose kind in each model has all names of the type."""

    def __init__(self, says: str, *models: type[Model]) -> None:
        self.says = says
        self.models = models
        self._lookup: dict[str, type[Model]] = {}
        for model in models:
            kind = model._fields["type"].kind
            if isinstance(kind, TypeName):
                self._lookup.update(dict.fromkeys([*kind.choices, *kind.aliases], model))

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, self.models):
            value.check(path, report)
            return value
        if isinstance(value, str):
            name = self._near(value) or _type_of(self.models[0])
            return self.refuse(value, path, report, f"write it as {{type: {name}}}")
        if not isinstance(value, Mapping):
            return self.refuse(value, path, report)
        given = value.get("type")
        model = self._lookup.get(given.strip().lower()) if isinstance(given, str) else None
        if model is not None:
            return model.structure(value, path, report)
        known = one_of([_type_of(model) for model in self.models])
        if given is None:
            others = (str(key) for key in value if key != "type")
            typo = next((key for key in others if nearest(key, ["type"]) or key.lower().endswith("type")), None)
            fix = f"did you mean 'type' by '{typo}'? Its values are {known}" if typo else f"add 'type': {known}"
            report.error(path, "has no type", fix)
        else:
            near = self._near(given)
            fix = f"did you mean '{near}'?" if near else f"write {known}"
            report.error((*path, "type"), f"unknown type {show(given)}", fix)
        return INVALID

    def _near(self, name: Any) -> str | None:
        near = nearest(name, self._lookup)
        return _type_of(self._lookup[near]) if near else None

    def schema(self) -> Schema:
        return {"anyOf": [reference(model) for model in self.models]}

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return value.to_dict(rewrite)


def reference(model: type[Model]) -> Schema:
    """A reference to the model's own schema in `definitions`."""
    return {"$ref": f"#/definitions/{model.__name__}"}


def _type_of(model: type[Model]) -> str:
    return str(model._fields["type"].default)
