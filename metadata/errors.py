"""What the store can refuse, each with the code that a client or an HTTP caller sees."""

from protocol.wire import pulsar_api_pb2 as api


class StoreError(Exception):
    """Base of everything that this package raises on purpose."""

    http_status = 500
    server_error: int = api.MetadataError


class StoreUnavailable(StoreError):
    """No answer within the patience of the call. A write may or may not have happened."""

    http_status = 503


class OutcomeUnknown(StoreUnavailable):
    """A write was sent and its reply lost: whether it happened must be looked up."""


class RecordDamaged(StoreError):
    """What stands where a record should be is none; everything else in the store goes on."""


class StoreLost(StoreError):
    """The store answers, but it is not the one whose data this node serves."""

    http_status = 503


class WritesRefused(StoreError):
    """The store answers and takes no writes, because it cannot save them: its disk is full or broken."""

    http_status = 503
    server_error = api.PersistenceError


class StoreFull(StoreError):
    """The store's memory limit is reached: deletes and transitions still work, creations do not."""

    http_status = 507


class StoreDenied(StoreError):
    """Credentials or an access rule of the store stand in the way."""

    http_status = 503


class StoreRefused(StoreError):
    """The store cannot carry Vela as it is configured; said once, at start."""

    http_status = 503


class BadStoreUrl(StoreError):
    """The `--store` value is not a URL that Vela understands."""

    http_status = 400


class TopicExists(StoreError):
    http_status = 409


class NameTaken(TopicExists):
    """By a topic of another kind: a name is that of a scalable, a partitioned or a single classic topic."""

    server_error = api.NotAllowedError


class TopicChanging(StoreError):
    """A partitioned topic that is being deleted or migrated, or that has been migrated: it cannot change any more."""

    http_status = 409
    server_error = api.NotAllowedError


class BadPartitions(StoreError):
    """A number of partitions that a topic cannot have."""

    http_status = 412
    server_error = api.NotAllowedError


class TopicMissing(StoreError):
    http_status = 404
    server_error = api.TopicNotFound


class VersionConflict(StoreError):
    """Somebody else wrote the record first: read it again and decide anew."""

    http_status = 409


class Fenced(StoreError):
    """A write of a leader whose leadership has ended: somebody else decides now."""

    http_status = 503


class SubscriptionMissing(StoreError):
    http_status = 404
    server_error = api.SubscriptionNotFound


class SubscriptionMismatch(StoreError):
    """A subscription of that name exists, with another type."""

    http_status = 409
    server_error = api.NotAllowedError


class CursorNotMoved(StoreError):
    """Its log's owner has not carried the request out yet. It stands, and whoever owns the log next does."""

    http_status = 503


class RegistrationsFull(StoreError):
    """A topic has as many subscriptions, or a subscription as many consumers, as there may be."""

    http_status = 412
    server_error = api.TooManyRequests


class SchemasFull(StoreError):
    """A topic has as many versions of its schema, or as many bytes of them, as there may be."""

    http_status = 412
    server_error = api.NotAllowedError


class NamespaceExists(StoreError):
    http_status = 409


class NamespaceMissing(StoreError):
    http_status = 404
    server_error = api.TopicNotFound


class NamespaceNotEmpty(StoreError):
    http_status = 409


class NamespaceClosing(StoreError):
    """It is being deleted with all of its topics, so none is created in it."""

    http_status = 409


class LogMissing(StoreError):
    """The segment is gone, with the topic or because nobody needs it any more."""

    http_status = 404
    server_error = api.TopicNotFound


class LogSealed(StoreError):
    """Nothing is appended to a sealed segment: its children take what comes."""

    http_status = 409
    server_error = api.TopicTerminatedError


class LogFenced(StoreError):
    """A call under a claim that has ended, or that knows less than the store: claim again."""

    http_status = 503
    server_error = api.ServiceNotReady


class TooFewReplicas(StoreError):
    """Entries are stored, but fewer replicas than wanted have confirmed them in time."""

    http_status = 503
    server_error = api.PersistenceError


class LeaderUnreachable(StoreError):
    """Only the leader of the topic may do this, and it does not answer; nothing was done."""

    http_status = 503
    server_error = api.ServiceNotReady
