package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** The client of earlier releases on persistent topics: who gets which message, how often, and when. */
final class Deliveries {
    private static final int CHUNK = 20_000;

    private final Map<String, AutoCloseable> open = new ConcurrentHashMap<>();

    void offer(Map<String, Driver.Operation> operations) {
        operations.put("deliveries-client", request -> keep(request,
                PulsarClient.builder().serviceUrl(request.get("url").asText()).build()));
        operations.put("deliveries-producer", request -> keep(request, producer(request)));
        operations.put("deliveries-consumer", request -> keep(request, consumer(request)));
        operations.put("deliveries-reader", request -> keep(request, named(request, "client", PulsarClient.class)
                .newReader(Schema.STRING).topic(request.get("topic").asText()).startMessageId(MessageId.earliest)
                .create()));
        operations.put("deliveries-send", this::send);
        operations.put("deliveries-receive", this::receive);
        operations.put("deliveries-read", this::read);
        operations.put("deliveries-close", request -> {
            open.remove(request.get("name").asText()).close();
            return null;
        });
    }

    private Producer<String> producer(JsonNode request) throws PulsarClientException {
        var builder = named(request, "client", PulsarClient.class).newProducer(Schema.STRING)
                .topic(request.get("topic").asText())
                .enableBatching(request.path("batches").asBoolean())
                .batchingMaxPublishDelay(1, TimeUnit.HOURS);
        if (request.path("chunks").asBoolean()) {
            builder.enableChunking(true).chunkMaxMessageSize(CHUNK);
        }
        return builder.create();
    }

    private Consumer<String> consumer(JsonNode request) throws PulsarClientException {
        var builder = named(request, "client", PulsarClient.class).newConsumer(Schema.STRING)
                .topic(request.get("topic").asText())
                .subscriptionName("readers")
                .subscriptionType(SubscriptionType.valueOf(request.get("type").asText()))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
        if (request.has("queueSize")) {
            builder.receiverQueueSize(request.get("queueSize").asInt());
        }
        if (request.has("deadAfter")) {
            builder.deadLetterPolicy(
                    DeadLetterPolicy.builder().maxRedeliverCount(request.get("deadAfter").asInt()).build());
        }
        return builder.subscribe();
    }

    /** Sends values, each `after` so many ms if that is said; all in one batch where the producer has batches. */
    private Object send(JsonNode request) throws Exception {
        @SuppressWarnings("unchecked")
        Producer<String> producer = named(request, "producer", Producer.class);
        List<CompletableFuture<MessageId>> sending = new ArrayList<>();
        for (JsonNode value : request.get("values")) {
            var builder = producer.newMessage().value(value.asText());
            if (request.has("after")) {
                builder.deliverAfter(request.get("after").asLong(), TimeUnit.MILLISECONDS);
            }
            sending.add(builder.sendAsync());
        }
        producer.flush();
        for (CompletableFuture<MessageId> sent : sending) {
            sent.get(30, TimeUnit.SECONDS);
        }
        return System.currentTimeMillis();
    }

    private List<Map<String, Object>> receive(JsonNode request) throws Exception {
        @SuppressWarnings("unchecked")
        Consumer<String> consumer = named(request, "consumer", Consumer.class);
        List<Map<String, Object>> received = new ArrayList<>();
        long deadline = System.currentTimeMillis() + request.get("limit").asLong();
        while (received.size() < request.get("count").asInt() && System.currentTimeMillis() < deadline) {
            Message<String> message = consumer.receive(100, TimeUnit.MILLISECONDS);
            if (message == null) {
                continue;
            }
            switch (request.path("settle").asText("acknowledge")) {
                case "acknowledge" -> consumer.acknowledge(message);
                case "reject" -> consumer.negativeAcknowledge(message);
                default -> { }
            }
            Map<String, Object> said = new HashMap<>();
            said.put("value", message.getValue());
            said.put("redeliveries", message.getRedeliveryCount());
            said.put("time", System.currentTimeMillis());
            received.add(said);
        }
        return received;
    }

    /** Reads as long as the reader says that there is more, which it asks before each message. */
    private List<String> read(JsonNode request) throws Exception {
        @SuppressWarnings("unchecked")
        Reader<String> reader = named(request, "reader", Reader.class);
        List<String> values = new ArrayList<>();
        while (values.size() < request.get("count").asInt() && reader.hasMessageAvailable()) {
            values.add(reader.readNext(10, TimeUnit.SECONDS).getValue());
        }
        return values;
    }

    private Object keep(JsonNode request, AutoCloseable thing) {
        open.put(request.get("name").asText(), thing);
        return null;
    }

    private <T> T named(JsonNode request, String role, Class<T> type) {
        return type.cast(open.get(request.get(role).asText()));
    }
}
