package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** The client of earlier releases at persistent topics: partitions that become more, access modes, readers that seek. */
final class Partitions {
    private static final int LIMIT_SECONDS = 20;

    private final Map<String, PulsarClient> clients = new ConcurrentHashMap<>();
    private final Map<String, Consumer<String>> consumers = new ConcurrentHashMap<>();
    private final Map<String, CompletableFuture<Producer<String>>> producers = new ConcurrentHashMap<>();

    void offer(Map<String, Driver.Operation> operations) {
        operations.put("v4-consume", this::consume);
        operations.put("v4-receive", this::receive);
        operations.put("v4-send", this::send);
        operations.put("v4-produce", this::produce);
        operations.put("v4-produced", this::produced);
        operations.put("v4-seek", this::seek);
    }

    /** One client for all of a server: its connections are shared. */
    private PulsarClient client(JsonNode request) {
        return clients.computeIfAbsent(request.get("url").asText(), url -> {
            try {
                return PulsarClient.builder().serviceUrl(url).build();
            } catch (PulsarClientException error) {
                throw new IllegalStateException(error);
            }
        });
    }

    private Object consume(JsonNode request) throws PulsarClientException {
        String name = request.get("name").asText();
        consumers.put(name, client(request).newConsumer(Schema.STRING)
                .topic(request.get("topic").asText())
                .subscriptionName("readers")
                .consumerName(name)
                .subscriptionType(SubscriptionType.valueOf(request.path("type").asText("Exclusive")))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                .autoUpdatePartitionsInterval(request.path("refresh").asInt(60), TimeUnit.SECONDS)
                .subscribe());
        return null;
    }

    private List<String> receive(JsonNode request) throws PulsarClientException {
        Consumer<String> consumer = consumers.get(request.get("name").asText());
        List<String> values = new ArrayList<>();
        for (int left = request.get("count").asInt(); left > 0; left--) {
            Message<String> message = consumer.receive(request.get("limit").asInt(), TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            consumer.acknowledge(message);
            values.add(message.getValue());
        }
        return values;
    }

    /** One by one, to all partitions in turn, with a pause where no two may be of the same time. */
    private Object send(JsonNode request) throws Exception {
        try (Producer<String> producer = client(request).newProducer(Schema.STRING)
                .topic(request.get("topic").asText())
                .enableBatching(false)
                .messageRoutingMode(MessageRoutingMode.RoundRobinPartition)
                .create()) {
            for (JsonNode value : request.get("values")) {
                producer.send(value.asText());
                Thread.sleep(request.path("pause").asInt(0));
            }
        }
        return null;
    }

    private Object produce(JsonNode request) {
        producers.put(request.get("name").asText(), client(request).newProducer(Schema.STRING)
                .topic(request.get("topic").asText())
                .accessMode(ProducerAccessMode.valueOf(request.get("mode").asText()))
                .createAsync());
        return null;
    }

    private Object produced(JsonNode request) throws Exception {
        producers.get(request.get("name").asText()).get(LIMIT_SECONDS, TimeUnit.SECONDS);
        return null;
    }

    /** Reads so many messages, goes back to when one of them was published, and reads as many as come from there. */
    private List<String> seek(JsonNode request) throws IOException {
        List<String> values = new ArrayList<>();
        try (Reader<String> reader = client(request).newReader(Schema.STRING)
                .topic(request.get("topic").asText())
                .startMessageId(MessageId.earliest)
                .create()) {
            List<Message<String>> all = new ArrayList<>();
            int count = request.get("count").asInt();
            while (all.size() < count) {
                all.add(reader.readNext(LIMIT_SECONDS, TimeUnit.SECONDS));
            }
            int index = request.get("index").asInt();
            reader.seek(all.get(index).getPublishTime());
            for (int left = count - index; left > 0; left--) {
                Message<String> message = reader.readNext(LIMIT_SECONDS, TimeUnit.SECONDS);
                values.add(message == null ? null : message.getValue());
            }
        }
        return values;
    }
}
