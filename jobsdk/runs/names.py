"""Names of runs."""

from __future__ import annotations

import os


def generate_name() -> str:
    """A name that no other run has, in the style of Azure ML's: `adjective_noun_10chars`."""
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    number = int.from_bytes(os.urandom(4), "big")
    tail = "".join(_ALPHABET[byte % 32] for byte in os.urandom(10))
    return f"{adjectives[number % len(adjectives)]}_{nouns[number // len(adjectives) % len(nouns)]}_{tail}"


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # 32 characters; none is taken for another


_ADJECTIVES = (
    "able amber bold brave brisk calm clever coral crisp dapper eager fair fond frank gentle glad golden "
    "grand happy hardy honest icy jolly keen kind lively loyal lucid mellow merry mild modest neat nimble "
    "noble patient plucky polite proud quick quiet ready rosy sharp silent silver smart solid steady "
    "sunny swift tidy tough upbeat vivid warm wise witty zesty"
)


_NOUNS = (
    "acorn anchor apple arrow aspen badger basil beacon bear birch bridge brook canyon cedar cloud comet "
    "crane creek drum eagle falcon fern field finch fjord forest fox garden glacier grove harbor hawk "
    "heron hill island ivy jade kite lagoon lake lantern lark leaf lemon lily lynx maple marble meadow "
    "mint moon oak ocean olive orchid otter owl panda pear pebble pine plum pond puffin quartz quill rain "
    "raven reef river robin rocket sail salmon seal sky sparrow spruce star stone swan thistle tiger "
    "tulip valley violet walnut wave willow wolf wren yarrow"
)
