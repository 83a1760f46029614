"""The prompts of transfer probes, and what is kept of engines that are gone."""

import random

from pdx_proxy.verification.prompts import Prompts
from tests.unit.proxy.verification.pools import D, P, engine


def length(prompts: Prompts, revision: str) -> int:
    pair = (engine(P, 0, revision), engine(D, 0, revision))
    return len(prompts.prompt_for(pair, now=0.0).split())


def test_a_revision_that_is_gone_leaves_nothing() -> None:
    """Its length is forgotten with its last engine, or every rollout would leave one."""
    prompts = Prompts(40.0, random.Random(1))
    usual = length(prompts, "a")
    for revision in ("a", "b"):
        pair = (engine(P, 0, revision), engine(D, 0, revision))
        prompts.shorten(revision, prompts.prompt_for(pair, now=0.0))
    assert (length(prompts, "a"), length(prompts, "b")) == (usual // 2, usual // 2)
    prompts.keep({engine(P, 0, "b").name}, {"b"})
    assert set(prompts._word_counts) == {"b"}
    assert (length(prompts, "a"), length(prompts, "b")) == (usual, usual // 2)
