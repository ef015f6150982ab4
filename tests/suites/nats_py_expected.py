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

_SUBJECTS = "a stream has one subject or pattern"
_HISTORY = "a bucket has a history of one"
_SUITE = "the test's own: "

EXPECTED: Final[dict[str, str]] = {
    "PublishTest.test_publish_msg_ttl": "messages have no TTL",
    "PullSubscribeTest.test_auto_create_consumer": _SUBJECTS,
    "PullSubscribeTest.test_consumer_with_multiple_filters": _SUBJECTS,
    "PullSubscribeTest.test_ephemeral_pull_subscribe": _SUBJECTS,
    "PullSubscribeTest.test_fetch_cancelled_errors_raised": _SUITE + "it lacks an import",
    "PullSubscribeTest.test_fetch_concurrent": _SUBJECTS,
    "PullSubscribeTest.test_fetch_headers": _SUITE + "nats-py refuses its header since 2.15",
    "PullSubscribeTest.test_fetch_n": _SUBJECTS,
    "PullSubscribeTest.test_fetch_one": _SUBJECTS,
    "PullSubscribeTest.test_pull_subscribe_limits": _SUBJECTS,
    "JSMTest.test_consumer_management": _SUBJECTS,
    "JSMTest.test_consumer_with_name": _SUBJECTS,
    "JSMTest.test_jsm_get_delete_msg": "single messages cannot be deleted",
    "JSMTest.test_jsm_stream_info_options": "only buckets count their subjects",
    "JSMTest.test_stream_management": _SUBJECTS,
    "SubscribeTest.test_subscribe_push_config": (
        "messages are pushed only to subjects of ingest.ack_subjects"
    ),
    "OrderedConsumerTest.test_flow_control": (
        "nats-py 2.16 ends its connection by the acknowledgements of a domain, where a consumer "
        "pushes with heartbeats and is acknowledged"
    ),
    "KVTest.test_key_validation": _HISTORY,
    "KVTest.test_key_validation_bypass": _HISTORY,
    "KVTest.test_keys_with_filters": _HISTORY,
    "KVTest.test_kv_basic": _HISTORY,
    "KVTest.test_kv_create_with_ttl": _HISTORY,
    "KVTest.test_kv_delete_with_ttl": _HISTORY,
    "KVTest.test_kv_direct": _HISTORY,
    "KVTest.test_kv_direct_get_msg": _HISTORY,
    "KVTest.test_kv_history": _HISTORY,
    "KVTest.test_kv_keys": _HISTORY,
    "KVTest.test_kv_purge_olderthan": _HISTORY,
    "KVTest.test_kv_purge_tombstones": _HISTORY,
    "KVTest.test_kv_purge_with_ttl": _HISTORY,
    "KVTest.test_kv_put_no_ttl": _HISTORY,
    "KVTest.test_kv_republish": "messages are not published again",
    "KVTest.test_kv_simple": _HISTORY,
    "KVTest.test_kv_update_no_direct_ttl": _HISTORY,
    "KVTest.test_purge_stream": _SUBJECTS,
    "V210FeaturesTest.test_fetch_pull_subscribe_bind": _SUBJECTS,
    "V210FeaturesTest.test_stream_allow_atomic": "batches are not atomic in NATS's form",
    "V210FeaturesTest.test_stream_allow_msg_schedules": "messages are not scheduled",
    "V210FeaturesTest.test_stream_compression": "a stream's compression is not NATS's",
    "V210FeaturesTest.test_stream_consumer_metadata": _SUBJECTS,
    "V210FeaturesTest.test_stream_mirror_removal": "there are no mirrors",
    "V210FeaturesTest.test_stream_persist_mode": "every stream is persisted in one way",
    "V210FeaturesTest.test_stream_source_opt_start_time": "there are no sources",
    "V210FeaturesTest.test_subject_transforms": "subjects are not transformed",
    "BadStreamNamesTest.test_add_stream_invalid_names": (
        _SUITE + "nats-py says it in other words by now"
    ),
}

_LATE = "it waits for less than a busy machine may take"

UNSTABLE: Final[dict[str, str]] = {
    "PublishTest.test_publish_async": _LATE,
    "OrderedConsumerTest.test_ordered_consumer_larger_streams": _LATE,
    "OrderedConsumerTest.test_ordered_consumer": (
        "it asks what was delivered when the last message is acknowledged: with us it may be "
        "on its way"
    ),
    "SubscribeTest.test_subscribe_custom_limits": (
        "it counts on messages that come one by one: we may send two at once"
    ),
}
"""Those that pass or fail by chance, and are not judged."""
