"""Which of nats.java's tests we claim to pass, and which of them fail, each with its reason."""

from __future__ import annotations

from typing import Final

CLASSES: Final = (
    "JetStreamConsumerTests", "JetStreamGeneralTests", "JetStreamManagementTests",
    "JetStreamPubTests", "JetStreamPullTests", "JetStreamPushAsyncTests",
    "JetStreamPushQueueTests", "JetStreamPushTests", "KeyValueTests", "SimplificationTests",
    "NatsConsumerPendingTests",
)  # fmt: skip
"""Not those of object stores, mirrors and sources, which we do not have; and not those that need no
JetStream."""

_DELETE = "single messages cannot be deleted"
_DELIVER = "messages are pushed only to subjects of ingest.ack_subjects; this one is random"
_HISTORY = "a bucket has a history of one"
_MIRROR = "there are no mirrors"
_PRIORITY = "pulls have no priority"
_RATE = "the rate of a consumer is not limited"
_SUBJECTS = "a stream has one subject or pattern"
_TTL = "messages and keys have no TTL"

EXPECTED: Final[dict[str, str]] = {
    "JetStreamConsumerTests.testMultipleSubjectFilters": _SUBJECTS,
    "JetStreamGeneralTests.testFilterMismatchErrors": _SUBJECTS,
    "JetStreamGeneralTests.testConsumerIsNotModified": _RATE,
    "JetStreamGeneralTests.testSubscribeDurableConsumerMustMatch": _DELIVER,
    "JetStreamGeneralTests.testPrefix": "it maps subjects of the API in the server's configuration",
    "JetStreamManagementTests.testAddStreamInvalids": (
        "what we do not have is refused as that, also where the stream is there"
    ),
    "JetStreamManagementTests.testAuthCreateUpdateStream": _SUBJECTS,
    "JetStreamManagementTests.testConsumerMetadata": "we add no labels to metadata",
    "JetStreamManagementTests.testCreateConsumerUpdateConsumer": (
        "a consumer that is created again as it is is no error; for JetStream it is one if its "
        "time without readers was left out"
    ),
    "JetStreamManagementTests.testDeleteMessage": _DELETE,
    "JetStreamManagementTests.testDirectMessageRepublishedSubject": (
        "messages are not published again"
    ),
    "JetStreamManagementTests.testGetMessage": _SUBJECTS,
    "JetStreamManagementTests.testGetStreamInfo": _SUBJECTS,
    "JetStreamManagementTests.testPurgeStreamAndOptions": _SUBJECTS,
    "JetStreamManagementTests.testResetConsumer": "consumers are not reset",
    "JetStreamManagementTests.testSealed": "streams are not sealed",
    "JetStreamManagementTests.testStreamCreate": _SUBJECTS,
    "JetStreamManagementTests.testStreamCreateWithNoSubject": "every stream is in files",
    "JetStreamManagementTests.testStreamPersistMode": "every stream is persisted in one way",
    "JetStreamManagementTests.testUpdateStream": _SUBJECTS,
    "JetStreamManagementTests.testUpdateStreamInvalids": _SUBJECTS,
    "JetStreamManagementTests.testValidConsumerUpdates": _RATE,
    "JetStreamPubTests.testMaxPayloadJs": _SUBJECTS,
    "JetStreamPubTests.testMsgDeleteMarkerMaxAge": _TTL,
    "JetStreamPubTests.testPublishExpectations": "no id of the last message is expected",
    "JetStreamPubTests.testPublishWithTTL": _TTL,
    "JetStreamPullTests.testOverflow": _PRIORITY,
    "JetStreamPullTests.testPinnedClient": _PRIORITY,
    "JetStreamPullTests.testPrioritized": _PRIORITY,
    "JetStreamPushAsyncTests.testDontAutoAckSituations": _SUBJECTS,
    "JetStreamPushAsyncTests.testMemoryStorageServerBugPR2719": "a rollup is for buckets only",
    "JetStreamPushTests.testDeliveryPolicy": _DELETE,
    "JetStreamPushTests.testPushDurableWithDeliver": _DELIVER,
    "KeyValueTests.testAtomicDeleteAtomicPurge": _HISTORY,
    "KeyValueTests.testCreateAndUpdate": _HISTORY,
    "KeyValueTests.testCreateUpdate": "every stream is in files",
    "KeyValueTests.testGetRevision": _HISTORY,
    "KeyValueTests.testHistoryDeletePurge": _HISTORY,
    "KeyValueTests.testJustLimitMarkerCreatePurge": _TTL,
    "KeyValueTests.testJustTtlForDeletePurge": _TTL,
    "KeyValueTests.testKeyValueMirrorCrossDomains": _MIRROR,
    "KeyValueTests.testKeyValueTransform": _MIRROR,
    "KeyValueTests.testLimitMarkerBehavior": _TTL,
    "KeyValueTests.testLimitMarkerCoverage": _TTL,
    "KeyValueTests.testMaxHistoryPerKey": _HISTORY,
    "KeyValueTests.testPurgeDeletes": _HISTORY,
    "KeyValueTests.testTtlAndDuplicateWindowRoundTrip": _TTL,
    "KeyValueTests.testWatch": _HISTORY,
    "KeyValueTests.testWithAccount": _HISTORY,
    "KeyValueTests.testWorkflow": _HISTORY,
    "SimplificationTests.testOrderedConsumeMultipleSubjects": _SUBJECTS,
    "SimplificationTests.testOverflowConsume": _PRIORITY,
    "SimplificationTests.testOverflowFetch": _PRIORITY,
    "SimplificationTests.testOverflowIterate": _PRIORITY,
    "SimplificationTests.testStreamContext": _DELETE,
}

_LATE = "it waits for less than a busy machine may take"
_DROPPED = "stopped, it drops what it has received and not handed out, if all of a pull has come"

UNSTABLE: Final[dict[str, str]] = {
    "JetStreamManagementTests.testGetStreamInfoSubjectPagination": _LATE,
    "KeyValueTests.testConsumeKeys": _LATE,
    "SimplificationTests.testConsumeWithHandler": _DROPPED,
    "SimplificationTests.testFetchDurable": _LATE,
    "SimplificationTests.testFetchEphemeral": _LATE,
    "SimplificationTests.testFetchOrdered": _LATE,
}
"""Those that pass or fail by chance, and are not judged."""
