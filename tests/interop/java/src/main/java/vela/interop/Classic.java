package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** The client of earlier releases, for the one thing that only it does: to watch the list of topics that match a pattern. */
final class Classic {
    private final Map<String, Consumer<String>> consumers = new ConcurrentHashMap<>();
    private final Map<String, PulsarClient> clients = new ConcurrentHashMap<>();

    void offer(Map<String, Driver.Operation> operations) {
        operations.put("pattern", this::subscribe);
        operations.put("pattern-receive", this::receive);
        operations.put("pattern-close", this::close);
    }

    private Object subscribe(JsonNode request) throws PulsarClientException {
        String name = request.get("name").asText();
        PulsarClient client = PulsarClient.builder().serviceUrl(request.get("url").asText()).build();
        clients.put(name, client);
        consumers.put(name, client.newConsumer(Schema.STRING)
                .topicsPattern(Pattern.compile(request.get("pattern").asText()))
                // So rarely that only a watch can tell of new topics in time.
                .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                .subscriptionName("readers")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
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

    private Object close(JsonNode request) throws PulsarClientException {
        String name = request.get("name").asText();
        consumers.remove(name).close();
        clients.remove(name).close();
        return null;
    }
}
