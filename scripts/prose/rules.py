"""The rules of the prose linter, each with a sentence that broke it and the sentence that replaced it. Pure.

docs/style.md explains them; its table is written from this file.
"""

from dataclasses import dataclass
from typing import Final

_MACHINE: Final = (
    r"(?:engine|gateway|operator|program|server|client|worker|pod|connector|node|condition|metric|log|message|test|column"
    r"|label|Kubernetes|vLLM|doctor|status|prefill|decode|it|that|which|P|D)"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a page may not contain. The pattern is RE2 without regard to case; a blank stands for any white space."""

    name: str
    pattern: str
    instead: str
    """What to write."""
    before: str
    """A sentence that breaks the rule. The rule exists because pages had such sentences."""
    after: str


RULES: Final = (
    Rule(
        "person-verb",
        rf"\b{_MACHINE}s? (?:(?:also|then|always|never|only|still) )?"
        r"(?:tells?|told|hears?|heard|knows?|knew|wants?|asks?|asked|says?|said|thinks?|believes?|wishes)\b"
        r"|\b(?:is|are|was|were|been) (?:told|asked|heard)\b",
        "a verb of machines: report, send, receive, request, query, require, have",
        "The engine tells the gateway how many requests wait, and the gateway knows the limit.",
        "The engine reports its waiting requests, and the gateway has the limit.",
    ),
    Rule(
        "what-subject",
        r"(?-i:(?:^|[.:;!?] |\* |\| )(?:What|Who) [^.?!:|#]*[^.?!:|# ]\.(?: |$))",
        "the noun itself as the subject",
        "What is shed has vLLM's error shape.",
        "Shed requests get a vLLM-style error body.",
    ),
    Rule(
        "everybody-who",
        r"\b(?:whoever|(?:everybody|anybody|somebody|nobody|everyone|those|he) who)\b",
        "anyone who, or the role: the client, the administrator",
        "Everybody who reaches the Service may use it.",
        "Anyone who can reach the Service can use it.",
    ),
    Rule("anew", r"\banew\b", "again", "The warm-up begins anew.", "The warm-up starts again."),
    Rule(
        "go-on",
        r"\b(?:go|goes|going|went) on\b|\bserves? on\b",
        "continue, keep running, keep serving",
        "Other requests go on meanwhile.",
        "Meanwhile, other requests continue.",
    ),
    Rule(
        "beside",
        r"\bbeside\b",
        "next to, alongside, in addition to, compared with",
        "New pairs come up beside the old ones.",
        "New pairs start alongside the old ones.",
    ),
    Rule(
        "in-place-of",
        r"\bin place of\b",
        "instead of",
        "Use your own router in place of the gateway.",
        "Use your own router instead of the gateway.",
    ),
    Rule(
        "stand-lie",
        r"\b(?:stands?|stood|lies|lie|lay) (?:in|at|there|here|together|before|below|above|behind|under)\b",
        "is, are; or name the action",
        "The rule stands in the connector's file.",
        "The connector's file has the rule.",
    ),
    Rule(
        "mend",
        r"\bmend(?:s|ed|ing)?\b|\brooms\b",
        "fix, repair, recover",
        "A newer request mends the pair by itself.",
        "The pair recovers with the next request.",
    ),
    Rule(
        "legalese",
        r"\b(?:(?:where|there)(?:by|in|from|of)|hereby|respectively|so-called|shall|ever more)\b",
        "a plain preposition, must, or two sentences",
        "P and D report 3 and 4 respectively, and the gateway shall wait.",
        "P reports 3 and D reports 4. The gateway must wait.",
    ),
    Rule(
        "machine-who",
        r"\b(?:engine|gateway|operator|program|server|pod|worker|connector|P|D)s?,? who\b",
        "that, which",
        "An engine who fails is ejected.",
        "An engine that fails is ejected.",
    ),
    Rule(
        "being",
        r"\b(?:is|are|was|were) being\b",
        "the active voice, or an adjective",
        "An engine whose pod is being deleted gets no request.",
        "A terminating engine gets no request.",
    ),
    Rule(
        "wordy",
        r"\b(?:in order to|due to the fact that|in the event that|(?:is|are) able to|makes? use of|with regard to"
        r"|prior to)\b",
        "to, because, if, can, use, about, before",
        "Make use of the prefix cache in order to save time.",
        "Use the prefix cache to save time.",
    ),
    Rule(
        "filler",
        r"\b(?:simply|obviously|of course|basically|easily|please|note that|actually|really|very)\b",
        "nothing: leave the word out, or give the number",
        "Simply run it. Note that it is really very fast.",
        "Run it. It takes 4 s.",
    ),
    Rule(
        "marketing",
        r"\b(?:blazing|seamless(?:ly)?|world-class|cutting-edge|state-of-the-art|revolutionary|effortless(?:ly)?|powerful"
        r"|best-in-class|game-chang\w+|next-generation|supercharge[sd]?|industry-leading|lightning-fast|unleash(?:es)?)\b",
        "the measured fact",
        "A powerful gateway with seamless failover.",
        "The gateway retries a failed request once, before its first byte.",
    ),
    Rule(
        "latin",
        r"\b(?:e\.g\.|i\.e\.|etc\.|viz\.|cf\.|vs\.)",
        "for example, that is, and so on, see, versus",
        "Use a fast network, e.g. InfiniBand.",
        "Use a fast network, for example InfiniBand.",
    ),
    Rule(
        "percent",
        r"^[^|\n]*\d %",
        "the sign without a blank before it, outside tables",
        "It serves 90 % of them.",
        "It serves 90% of them.",
    ),
)
"""With the two below and two that proselint has, at most twenty."""

LONGEST: Final = 45
"""Words of a sentence. A sentence of a table's cell ends with the cell."""
BUILT_IN: Final = ("lexical_illusions", "redundancy")
"""Checks of proselint's own: a word written twice; phrases that contain one idea twice."""
