"""Which words the task families are made of: short, common, one word each, so that a small vocabulary covers them."""

from __future__ import annotations

__all__ = ["ANIMALS", "CITIES", "COLORS", "FOODS", "JOBS", "NAMES", "THINGS", "word_list"]


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


NAMES = word_list(
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paul Quinn Rosa Sam Tina "
    "Victor Wendy Xavier Yara Zoe Adam Bella Carl Diana Eric Fiona George Helen Ivan Julia Kevin Laura Mark Nora "
    "Oliver Peter Rachel Simon Tom Ursula Vera Walter Anna Ben Clara Daniel Eva Felix Gina Hugo Iris James Kate "
    "Linda Max Nancy Otto Philip Ruth"
)
THINGS = word_list(
    "lamp hammer guitar camera ladder bottle basket mirror candle pencil blanket bucket carpet clock coin compass "
    "crown curtain diary drum envelope fan flag flute fork glove helmet jacket jar kettle kite knife magnet map mask "
    "medal needle notebook oar paint piano pillow pipe plate purse puzzle radio ribbon ring rope ruler saddle scarf "
    "shovel spoon stamp sword tent ticket torch trumpet umbrella vase violin wallet wheel whistle"
)
CITIES = word_list(
    "Paris London Rome Berlin Madrid Vienna Oslo Dublin Lisbon Prague Athens Warsaw Cairo Tokyo Delhi Lima Boston "
    "Chicago Denver Dallas Seattle Toronto Sydney Moscow Beijing Bangkok Nairobi Havana Milan Geneva Munich Naples"
)
JOBS = word_list(
    "baker farmer lawyer doctor teacher painter singer driver pilot nurse sailor tailor writer dancer judge miner"
)
ANIMALS = word_list("cat dog horse goat sheep rabbit duck fox parrot turtle pig cow mouse hen frog lion")
COLORS = word_list("red blue green yellow black white brown gray pink purple")
FOODS = word_list("bread cheese soup rice fish fruit honey cake pasta salad corn butter beans pie milk tea")
