"""Which of nats-py's tests we claim to pass, and those of them that fail, each with its reason."""

from __future__ import annotations

from typing import Final

CLASSES: Final = (
    "PublishTest", "PullSubscribeTest", "JSMTest", "ConsumerPauseResumeTest", "SubscribeTest",
    "AckPolicyTest", "OrderedConsumerTest", "KVTest", "ConsumerReplicasTest", "V210FeaturesTest",
    "BadStreamNamesTest",
)  # fmt: skip
"""Not those of object stores, of limits of accounts, and of discarding new messages, which we do
not have; and not those that need no server."""

EXPECTED: Final[dict[str, str]] = {}
