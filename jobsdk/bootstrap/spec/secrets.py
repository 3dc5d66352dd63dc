"""What is secret: which variables and which pieces of text are, and how both are kept out of what is written.

Two things make a value secret without being declared: the name of its variable, and its own form. The forms are those
that the issuers document (GitHub, GitLab, Hugging Face, OpenAI, AWS, Google, Slack, Azure Storage and its shared access
signatures, JSON Web Tokens, PEM keys, passwords in URLs). What only resembles one is left alone: a run whose ordinary
words turn into stars is of no use.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping, Match, Pattern, Tuple, Union

if TYPE_CHECKING:
    from .plan import Plan, SecretParts

MASK = "***"
#: Shorter values are not looked for in text: they would be found in ordinary words.
SHORTEST = 6

# -- by the name of a variable ---------------------------------------------------------------------------------------

_WORDS = frozenset("TOKEN SECRET SECRETS PASSWORD PASSWD PASSPHRASE CREDENTIAL CREDENTIALS SAS APIKEY SSHPASS".split())
_WORD_ENDS = ("PASSWORD", "PASSWD", "APIKEY", "AUTHTOKEN", "ACCESSTOKEN", "SECRETKEY", "ACCESSKEY")
_KEYS = frozenset("API ACCESS PRIVATE ACCOUNT STORAGE ENCRYPTION SIGNING AUTH MASTER SHARED SUBSCRIPTION SSH".split())
_PASS = frozenset("DB DATABASE MYSQL POSTGRES PG SMTP MAIL EMAIL REDIS FTP HTTP PROXY MONGO ADMIN USER".split())
#: Before a last word PASS: a step of a computation or a filter. Before a last word PWD: a working directory.
_OF_STEPS = frozenset(
    "FORWARD BACKWARD FIRST SECOND LAST SINGLE ONE TWO MULTI LOW HIGH BAND RENDER TEST NUM MAX".split()
)
_OF_FOLDERS = frozenset("OLD NEW INIT INITIAL ORIG ORIGINAL START LAST PREV CURRENT HOST BASE WORK".split())
#: A language model's tokens, before the word TOKEN.
_OF_MODELS = frozenset(
    "EOS BOS PAD MASK UNK SEP CLS STOP SPECIAL IMAGE START END MAX MIN NUM PER NEXT NEW FIRST LAST EXTRA".split()
)
#: Last words of names that say something about a secret, and do not hold it.
_ABOUT = frozenset(
    "FILE FILES PATH DIR FOLDER ROOT HOME URL URI ENDPOINT HOST PORT NAME NAMES ID IDS TYPE KIND LENGTH LEN SIZE "
    "COUNT LIMIT BUDGET TTL TIMEOUT EXPIRY EXPIRES EXPIRATION LIFETIME DURATION VERSION MODE METHOD ENABLED DISABLED "
    "PROVIDER STORE MANAGER BACKEND REGION HEADER FIELD RATE RATIO LOSS INDEX POLICY ALGORITHM SOCK SOCKET CACHE "
    "SCOPE SOURCE".split()
)
_SWITCH = re.compile(r"(?i)(?:true|false|yes|no|on|off|none|null|auto|\d{0,5})\Z")
#: No value but the place of one: `$NAME`, `{{ secrets.x }}`, `<your token>`, `***`.
_A_REFERENCE = re.compile(r"(?:\$\{?[A-Z_][A-Z0-9_]*\}?|\$?\{\{.*\}\}|<[^>]*>|\*+)\Z")
#: GOOGLE_APPLICATION_CREDENTIALS names a file. A key of AWS may look like a path, and is none.
_MAY_BE_A_PATH = re.compile("(?i)credential|private|ssh|pwd$")
_A_PATH = re.compile(r"(?:~|\.{1,2})?/[\w.+@ /-]*\Z")


def is_named_secret(name: str) -> bool:
    """Whether a variable's name says that its value is secret: HF_TOKEN does, MAX_TOKENS and TOKEN_LIMIT do not."""
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name) if not name.isupper() else name
    words = [word for word in re.split(r"[_\W]+", split.upper()) if word]
    if not words or words[-1] in _ABOUT:
        return False
    if words[-1] == "PASS" and not _OF_STEPS.intersection(words[-2:-1]):
        return True
    if words[-1] == "PWD" and len(words) > 1 and words[-2] not in _OF_FOLDERS:
        return True
    for before, word in zip(["", *words], words):
        if word == "TOKEN" and before in _OF_MODELS:
            continue
        if word in _WORDS or word.endswith(_WORD_ENDS):
            return True
        if (word == "KEY" and before in _KEYS) or (word in ("PASS", "PWD") and before in _PASS):
            return True
        if word in ("STRING", "STR") and before in ("CONNECTION", "CONN"):
            return True
    return False


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is secret, by its name or by its value. Switches (`USE_TOKEN=1`) and references are not."""
    if _found(value):
        return True
    if not is_named_secret(name) or _SWITCH.match(value) or _A_REFERENCE.match(value):
        return False
    return not (_MAY_BE_A_PATH.search(name) and _A_PATH.match(value))


# -- by the form of a value ------------------------------------------------------------------------------------------

#: Each form; a group is the secret part of it.
_FORMS = r"""
    (?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}
    | (?<![A-Za-z0-9_-])sk-(?:(?:proj|ant|svcacct|admin|or|lf)-[A-Za-z0-9_-]{16,}|[A-Za-z0-9]{20,})
    | (?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})
    | (?<![A-Za-z0-9_-])glpat-[A-Za-z0-9_-]{20,}
    | (?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
    | (?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}
    | (?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{30,}
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    | -----BEGIN[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY-----(?:[\s\S]*?-----END[ ][A-Z0-9 ]+-----|[\s\S]*)
    | (?i:(?:AccountKey|SharedAccessKey)=)([A-Za-z0-9+/=]{16,})
    | (?i:[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|security-token)|(?:access_|auth_)?token
        |api_?key|password|client_secret)=)([^\s&"'<>${*][^\s&"'<>]{5,})
    | ://[^\s/:@"'<>]*:([^\s/@"'<>${*][^\s/@"'<>]*)@
    | (?i:(?<![A-Za-z])bearer[ ]+)((?=[^\s"']*\d)[A-Za-z0-9._~+/=-]{16,})
"""
#: One of these, in lower case, stands in every text of these forms: a look for them is all that most texts cost.
_MARKS = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "akia", "asia", "xox", "aiza", "eyj",
    "private key-----", "://", "bearer ", "sig=", "signature=", "token=", "key=", "password=", "client_secret=",
)  # fmt: skip


@lru_cache(maxsize=None)
def _pattern() -> Pattern[str]:
    return re.compile(_FORMS, re.VERBOSE)


def _matches(text: str) -> Iterable[Match[str]]:
    lower = text.lower()
    return _pattern().finditer(text) if any(mark in lower for mark in _MARKS) else ()


def _span(found: Match[str]) -> Tuple[int, int]:
    """Where the secret part of a form is."""
    return found.span(found.lastindex or 0)


def _found(text: str) -> List[str]:
    return [text[slice(*_span(found))] for found in _matches(text)]


#: A word of a command with what comes after it: `NAME=value`, `--name=value`, `--name value`, `-name value`.
_ASSIGNED = re.compile(r"""(?<![\w$-])(-{0,2})([A-Za-z][\w-]*)(=|\s+)(?=("[^"\n]*"|'[^'\n]*'|[^\s"';&|()<>]+))""")


def in_command(command: str, values: Iterable[str] = ()) -> List[str]:
    """The secrets that are written into a command, in their order: by their form, as the value of a word that names
    one (`--password hunter2`), or because they are among `values`."""
    spans = [_span(found) for found in _matches(command)]
    found = [(start, command[start:end]) for start, end in spans]
    for match in _ASSIGNED.finditer(command):
        dashes, name, sign, word = match.groups()
        value = word.strip("\"'")
        is_given = (sign == "=" or dashes) and len(value) >= SHORTEST and value[0] != "-" and "$" not in value
        if is_given and is_named_secret(name) and is_secret(name, value) and not _A_PATH.match(value):
            found.append((match.start(4), value))
    found += [(command.index(value), value) for value in values if len(value) >= SHORTEST and value in command]
    return list(dict.fromkeys(text for _, text in sorted(found)))


# -- keeping them out of text ----------------------------------------------------------------------------------------


class Redactor:
    """Takes the given values, and all that looks like a secret, out of text that is to be written."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _as_written(value)}
        #: All in which the values are looked for, the longest first.
        self.forms = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` with `***` in the place of each secret, also of one that was cut at the text's end."""
        for form in self.forms:
            text = text.replace(form, MASK)
        text = self._without_cut(text)
        for found in reversed(list(_matches(text))):
            start, end = _span(found)
            text = text[:start] + MASK + text[end:]
        return text

    def data(self, data: Any) -> Any:
        """Plain data with `text` applied to all texts in it, but for keys; a key may say that its text is secret."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            hidden = {key for key, value in data.items() if isinstance(value, str) and is_named_secret(str(key))}
            return {key: MASK if key in hidden else self.data(value) for key, value in data.items()}
        return [self.data(value) for value in data] if isinstance(data, (list, tuple)) else data

    def _without_cut(self, text: str) -> str:
        for form in self.forms:
            start = text.rfind(form[:SHORTEST], max(0, len(text) - len(form)))
            if start >= 0 and form.startswith(text[start:]):
                return text[:start] + MASK
        return text


def _as_written(value: str) -> Iterable[str]:
    """A secret in the forms in which programs write it: as it is, in quotes, in a URL, a line of it."""
    pieces = [value, value.strip(), *_found(value)]
    lines = value.splitlines()
    pieces += [line.strip() for line in lines if len(lines) > 1 and len(line.strip()) >= 16]
    for piece in pieces:
        if len(piece) >= SHORTEST:
            yield piece
            yield repr(piece)[1:-1]
            yield json.dumps(piece)[1:-1]
            yield re.sub(r"[^A-Za-z0-9._~-]", _percent, piece)


def _percent(found: Match[str]) -> str:
    return "".join("%%%02X" % byte for byte in found[0].encode("utf-8", "surrogateescape"))


def redactor(plan: Union[Plan, SecretParts], environ: Mapping[str, str]) -> Redactor:
    """What knows the secrets of a job: those of its plan as `plan_file.read` gives it, and of the environment that
    its processes inherit."""
    inherited = [value for name, value in environ.items() if is_secret(name, value)]
    return Redactor([*plan.get("secret_values", ()), *inherited])


def redacted(text: str) -> str:
    """`text` without what looks like a secret by its form."""
    return Redactor().text(text)
