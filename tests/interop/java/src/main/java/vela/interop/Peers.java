package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerAccessMode;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TlsPolicy;
import vela.interop.Shapes.Shape;

/** Clients, producers and consumers of the V5 API, each under a name that the test chose. */
final class Peers {
    private static final Duration ACK_GROUP_TIME = Duration.ofMillis(10);
    private static final Duration NACK_DELAY = Duration.ofMillis(100);
    private static final Duration SLICE = Duration.ofMillis(100);
    private static final int CHUNK = 1_000_000;

    private final Map<String, AutoCloseable> open = new ConcurrentHashMap<>();

    void offer(Map<String, Driver.Operation> operations) {
        operations.put("client", request -> keep(request, client(request)));
        operations.put("producer", request -> keep(request, producer(request, shape(request))));
        operations.put("queue", request -> keep(request, queue(request, shape(request))));
        operations.put("stream", request -> keep(request, stream(request, shape(request))));
        operations.put("checkpoints", request -> keep(request, checkpoints(request, shape(request))));
        operations.put("send", request -> named(request, "producer", Sender.class).send(request));
        operations.put("progress", request -> named(request, "producer", Sender.class).acknowledged());
        operations.put("receive", request -> receive(named(request, "consumer", Source.class), request));
        operations.put("checkpoint", request -> text(named(request, "consumer", Source.class).checkpoint()));
        operations.put("close", this::close);
    }

    private static PulsarClient client(JsonNode request) throws PulsarClientException {
        var builder = PulsarClient.builder().serviceUrl(request.get("url").asText());
        if (request.has("trust")) {
            builder.tlsPolicy(TlsPolicy.builder().trustCertsFilePath(request.get("trust").asText()).build());
        }
        return builder.build();
    }

    private <T> Sender<T> producer(JsonNode request, Shape<T> shape) throws PulsarClientException {
        var builder = of(request).newProducer(shape.schema()).topic(request.get("topic").asText());
        if (request.has("producerName")) {
            builder.producerName(request.get("producerName").asText());
        }
        if (request.has("access")) {
            builder.accessMode(ProducerAccessMode.valueOf(request.get("access").asText()));
        }
        if (request.path("chunks").asBoolean()) {
            builder.chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(CHUNK).build());
            builder.batchingPolicy(BatchingPolicy.builder().enabled(false).build());
        }
        return new Sender<>(builder.create(), shape.type());
    }

    private <T> Source queue(JsonNode request, Shape<T> shape) throws PulsarClientException {
        var builder = of(request).newQueueConsumer(shape.schema())
                .subscriptionName(request.get("subscription").asText())
                .subscriptionInitialPosition(position(request))
                .acknowledgmentGroupTime(ACK_GROUP_TIME)
                // Not a fixed delay: the M1 release accepts one here and refuses it when it subscribes.
                .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(NACK_DELAY, NACK_DELAY.multipliedBy(2)));
        if (request.has("queueSize")) {
            builder.receiverQueueSize(request.get("queueSize").asInt());
        }
        if (request.has("deadAfter")) {
            int redeliveries = request.get("deadAfter").asInt();
            builder.deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(redeliveries).build());
        }
        if (request.has("namespace")) {
            builder.namespace(request.get("namespace").asText(), filters(request));
        } else {
            builder.topic(request.get("topic").asText());
        }
        return new Source.Queue(builder.subscribe());
    }

    private <T> Source stream(JsonNode request, Shape<T> shape) throws PulsarClientException {
        var builder = of(request).newStreamConsumer(shape.schema())
                .subscriptionName(request.get("subscription").asText())
                .subscriptionInitialPosition(position(request))
                .acknowledgmentGroupTime(ACK_GROUP_TIME);
        if (request.has("consumerName")) {
            builder.consumerName(request.get("consumerName").asText());
        }
        if (request.has("namespace")) {
            builder.namespace(request.get("namespace").asText(), filters(request));
        } else {
            builder.topic(request.get("topic").asText());
        }
        return new Source.Stream(builder.subscribe());
    }

    private <T> Source checkpoints(JsonNode request, Shape<T> shape) throws IOException {
        Checkpoint start = switch (request.path("from").asText("earliest")) {
            case "earliest" -> Checkpoint.earliest();
            case "latest" -> Checkpoint.latest();
            default -> Checkpoint.fromByteArray(Base64.getDecoder().decode(request.get("from").asText()));
        };
        var builder = of(request).newCheckpointConsumer(shape.schema())
                .topic(request.get("topic").asText())
                .startPosition(start);
        if (request.has("group")) {
            builder.consumerGroup(request.get("group").asText());
        }
        return new Source.Checkpoints(builder.create());
    }

    /** Receives until `count` messages have come or `limit` ms are over, and settles each at once as `settle` says. */
    private static List<Map<String, Object>> receive(Source source, JsonNode request) throws PulsarClientException {
        String settle = request.path("settle").asText("acknowledge");
        long deadline = System.nanoTime() + Duration.ofMillis(request.get("limit").asLong()).toNanos();
        List<Map<String, Object>> received = new ArrayList<>();
        while (received.size() < request.get("count").asInt() && System.nanoTime() < deadline) {
            Message<?> message = source.receive(SLICE);
            if (message == null) {
                continue;
            }
            switch (settle) {
                case "acknowledge" -> source.acknowledge(message);
                case "reject" -> source.reject(message);
                case "keep" -> { }
                default -> throw new IllegalArgumentException("no such way to settle a message: " + settle);
            }
            received.add(described(message));
        }
        return received;
    }

    private static Map<String, Object> described(Message<?> message) {
        Map<String, Object> said = new HashMap<>();
        said.put("key", message.key().orElse(null));
        said.put("value", message.value());
        said.put("topic", message.topic());
        said.put("redeliveries", message.redeliveryCount());
        said.put("id", text(message.id().toByteArray()));
        return said;
    }

    private Object keep(JsonNode request, AutoCloseable thing) {
        open.put(request.get("name").asText(), thing);
        return null;
    }

    private Object close(JsonNode request) throws Exception {
        AutoCloseable thing = open.remove(request.get("name").asText());
        if (thing != null) {
            thing.close();
        }
        return null;
    }

    private PulsarClient of(JsonNode request) {
        return named(request, "client", PulsarClient.class);
    }

    private <T> T named(JsonNode request, String role, Class<T> type) {
        return type.cast(open.get(request.get(role).asText()));
    }

    private static Shape<?> shape(JsonNode request) {
        return Shapes.named(request.path("schema").asText("string"));
    }

    private static SubscriptionInitialPosition position(JsonNode request) {
        return SubscriptionInitialPosition.valueOf(request.path("from").asText("earliest").toUpperCase());
    }

    private static Map<String, String> filters(JsonNode request) {
        Map<String, String> filters = new HashMap<>();
        request.path("filters").properties().forEach(each -> filters.put(each.getKey(), each.getValue().asText()));
        return filters;
    }

    private static String text(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
