package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;

/** A producer that knows which of its messages were acknowledged, also while it is still sending. */
final class Sender<T> implements AutoCloseable {
    private final Producer<T> producer;
    private final Class<T> type;
    private final AtomicInteger acknowledged = new AtomicInteger();

    Sender(Producer<T> producer, Class<T> type) {
        this.producer = producer;
        this.type = type;
    }

    int acknowledged() {
        return acknowledged.get();
    }

    /**
     * Sends `messages` in their order, each after the last one's receipt or, with `async`, at once, `pace` ms apart.
     * Says which of them failed, by their place in the list, and why; all others were acknowledged.
     */
    Map<Integer, String> send(JsonNode request) throws Exception {
        Map<Integer, String> failed = new TreeMap<>();
        List<CompletableFuture<?>> sending = new ArrayList<>();
        long pace = request.path("pace").asLong(0);
        for (JsonNode message : request.get("messages")) {
            sending.add(request.path("async").asBoolean() ? started(message) : finished(message));
            if (pace > 0) {
                Thread.sleep(pace);
            }
        }
        for (int place = 0; place < sending.size(); place++) {
            try {
                sending.get(place).join();
            } catch (RuntimeException error) {
                failed.put(place, Driver.told(error));
            }
        }
        return failed;
    }

    private CompletableFuture<?> started(JsonNode message) throws Exception {
        var builder = producer.async().newMessage().value(Driver.JSON.treeToValue(message.get("value"), type));
        if (message.hasNonNull("key")) {
            builder.key(message.get("key").asText());
        }
        if (message.hasNonNull("after")) {
            builder.deliverAfter(Duration.ofMillis(message.get("after").asLong()));
        }
        return builder.send().thenRun(acknowledged::incrementAndGet);
    }

    private CompletableFuture<?> finished(JsonNode message) throws Exception {
        var builder = producer.newMessage().value(Driver.JSON.treeToValue(message.get("value"), type));
        if (message.hasNonNull("key")) {
            builder.key(message.get("key").asText());
        }
        if (message.hasNonNull("after")) {
            builder.deliverAfter(Duration.ofMillis(message.get("after").asLong()));
        }
        try {
            builder.send();
            acknowledged.incrementAndGet();
            return CompletableFuture.completedFuture(null);
        } catch (PulsarClientException error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    @Override
    public void close() throws PulsarClientException {
        producer.close();
    }
}
