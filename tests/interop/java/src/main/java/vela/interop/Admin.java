package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.ScalableTopics;
import org.apache.pulsar.common.policies.data.ScalableSubscriptionType;

/** What `pulsar-admin scalable-topics` does, by the same calls. */
final class Admin {
    private final Map<String, PulsarAdmin> admins = new ConcurrentHashMap<>();

    void offer(Map<String, Driver.Operation> operations) {
        operations.put("admin", this::perform);
    }

    private Object perform(JsonNode request) throws Exception {
        ScalableTopics topics = topics(request.get("url").asText());
        String topic = request.path("topic").asText();
        String subscription = request.path("subscription").asText();
        JsonNode segments = request.path("segments");
        return switch (request.get("call").asText()) {
            case "list" -> request.has("properties")
                    ? topics.listScalableTopicsByProperties(request.get("namespace").asText(), properties(request))
                    : topics.listScalableTopics(request.get("namespace").asText());
            case "metadata" -> topics.getMetadata(topic);
            case "stats" -> topics.getStats(topic);
            case "create" -> {
                topics.createScalableTopic(topic, request.path("count").asInt(1), properties(request));
                yield null;
            }
            case "delete" -> {
                topics.deleteScalableTopic(topic, request.path("force").asBoolean());
                yield null;
            }
            case "split" -> {
                topics.splitSegment(topic, segments.get(0).asLong());
                yield null;
            }
            case "merge" -> {
                topics.mergeSegments(topic, segments.get(0).asLong(), segments.get(1).asLong());
                yield null;
            }
            case "subscribe" -> {
                ScalableSubscriptionType type = ScalableSubscriptionType.valueOf(request.get("type").asText());
                topics.createSubscription(topic, subscription, type);
                yield null;
            }
            case "unsubscribe" -> {
                topics.deleteSubscription(topic, subscription);
                yield null;
            }
            case "seek" -> {
                topics.seekSubscription(topic, subscription, request.get("timestamp").asLong());
                yield null;
            }
            case "clear-backlog" -> {
                topics.clearBacklog(topic, subscription);
                yield null;
            }
            case "create-segment" -> {
                List<String> subscriptions = new ArrayList<>();
                request.path("subscriptions").forEach(each -> subscriptions.add(each.asText()));
                topics.createSegment(topic, subscriptions);
                yield null;
            }
            case "terminate-segment" -> {
                topics.terminateSegment(topic);
                yield null;
            }
            case "delete-segment" -> {
                topics.deleteSegment(topic, request.path("force").asBoolean());
                yield null;
            }
            case "segment-backlog" -> topics.getSegmentSubscriptionBacklogAsync(topic, subscription).get();
            case "migrate" -> {
                topics.migrateToScalable(topic, request.path("force").asBoolean());
                yield null;
            }
            default -> throw new IllegalArgumentException("no such call: " + request.get("call"));
        };
    }

    private ScalableTopics topics(String url) {
        return admins.computeIfAbsent(url, Admin::connected).scalableTopics();
    }

    private static PulsarAdmin connected(String url) {
        try {
            return PulsarAdmin.builder().serviceHttpUrl(url).build();
        } catch (Exception error) {
            throw new IllegalStateException("no admin client for " + url, error);
        }
    }

    private static Map<String, String> properties(JsonNode request) {
        Map<String, String> properties = new HashMap<>();
        request.path("properties").properties().forEach(each -> properties.put(each.getKey(), each.getValue().asText()));
        return properties;
    }
}
