package vela.interop;

import org.apache.pulsar.client.api.v5.schema.Schema;

/** The values that are sent: plain strings, and records whose schemas evolve well or badly. */
final class Shapes {
    /** What a sensor said, in its first version. */
    public static class Reading {
        public String sensor;
        public int celsius;
    }

    /** A later version that readers of the first understand, and that understands the first. */
    public static class NotedReading {
        public String sensor;
        public int celsius;
        public String note;
    }

    /** The same fields with another type: neither side understands the other. */
    public static class GarbledReading {
        public String sensor;
        public boolean[] celsius;
    }

    /** A schema and the class of its values. */
    record Shape<T>(Class<T> type, Schema<T> schema) {}

    private Shapes() {}

    static Shape<?> named(String name) {
        return switch (name) {
            case "string" -> new Shape<>(String.class, Schema.string());
            case "json" -> new Shape<>(Reading.class, Schema.json(Reading.class));
            case "json-noted" -> new Shape<>(NotedReading.class, Schema.json(NotedReading.class));
            case "json-garbled" -> new Shape<>(GarbledReading.class, Schema.json(GarbledReading.class));
            case "avro" -> new Shape<>(Reading.class, Schema.avro(Reading.class));
            case "avro-noted" -> new Shape<>(NotedReading.class, Schema.avro(NotedReading.class));
            case "avro-garbled" -> new Shape<>(GarbledReading.class, Schema.avro(GarbledReading.class));
            default -> throw new IllegalArgumentException("no such schema: " + name);
        };
    }
}
